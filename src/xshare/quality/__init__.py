"""What selection does to the answers: tasks with one right answer, and how they are scored."""
