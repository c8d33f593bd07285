"""python -m convoy"""

from convoy.cli.main import run

if __name__ == "__main__":
    run()
