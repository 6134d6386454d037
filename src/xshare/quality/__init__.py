"""What selection does to the answers: tasks with one right answer each, and how answers are scored."""
