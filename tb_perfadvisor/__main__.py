"""`python -m tb_perfadvisor` is the `perfadvisor` command."""

if __name__ == "__main__":
    # Processes that decode slices import this module, too, and need no command line.
    from tb_perfadvisor.cli import main

    main()
