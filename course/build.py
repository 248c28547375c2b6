"""Build the notebooks: `python -m course.build [LESSON ...]` runs lessons like course.run and stores their outputs."""

import sys

from course.run import run

if __name__ == "__main__":
    print(run(sys.argv[1:], writes=True))
