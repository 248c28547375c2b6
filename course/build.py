"""Build the notebooks: python -m course.build [LESSON ...] does what course.run does, and writes cells with outputs."""

import sys

from course.run import run

if __name__ == "__main__":
    print(run(sys.argv[1:], writes=True))
