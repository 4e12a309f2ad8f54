"""`python -m tb_perfadvisor` is the `perfadvisor` command."""

from tb_perfadvisor.cli import main

if __name__ == "__main__":
    main()
