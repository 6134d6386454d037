"""Questions whose answers nano begins with a sum, as a task file: questions.py COUNT

The sum is what is compared, and it is among the first tokens: to see a search run need not take long answers.
"""

import json
import random
import sys

draw = random.Random(0)
for _ in range(int(sys.argv[1])):
    a, b, c = (draw.randrange(10, 60) for _ in range(3))
    question = f"<|question|>Compute {a} + {b} - {c}<|answer|>"
    print(json.dumps({"question": question, "answer": f"{a} + {b} = {a + b}", "compare": "contains"}))
