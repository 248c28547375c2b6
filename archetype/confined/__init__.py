"""Work on what strangers wrote, each kind of it a module with a function `answer`, in a process that can be killed."""
