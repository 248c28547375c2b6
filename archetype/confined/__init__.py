"""Process untrusted input in a child process that can be killed: each task is a module with a function `answer`."""
