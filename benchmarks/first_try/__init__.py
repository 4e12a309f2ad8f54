"""The first try: advice on other people's GPU profiles, judged once against written-down truths."""
