"""The engine in Python: load, analyze, compare.

>>> from tb_perfadvisor import analyze, compare
>>> report = analyze("runs/resnet50")
>>> report.findings[0].title
>>> compare("runs/resnet50", "runs/resnet50_workers").targets[0].headline
"""
