"""python -m xshare"""

from xshare.cli import main

if __name__ == "__main__":
    main()
