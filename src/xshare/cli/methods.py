"""`xshare methods`: what can be compared, and each method's knobs."""

from xshare.cli.output import wide_console
from xshare.methods import METHODS
from xshare.policy import LETTERS

LETTER_HELP = {
    "k0": "best experts each token is sure to keep",
    "m": "experts added for the batch",
    "mr": "experts added for each request",
    "mg": "experts each device is filled up to",
    "tau": "share of the gating score to reach",
    "ml": "another m in some layers, by the model's own layer numbers, as ml=0:24/3:8",
    "fill": "level or rounds, how devices are filled",
    "score": "full or topk, what is summed",
}


def methods() -> None:
    """List the selection methods, one line each, with their knobs."""
    console = wide_console()
    for method in sorted(METHODS.values(), key=lambda method: (method.name != "xshare", method.name)):
        console.print(f"[bold]{method.name:<11}[/bold]{method.summary}")
        console.print(f"{'':<11}[dim]knobs: {method.knobs.spelled()}[/dim]")
    console.print("\nknobs, as in [bold]k0=1,m=24[/bold] (xshare) or [bold]oea:k0=2[/bold]")
    for letter in LETTERS:
        console.print(f"  {letter:<7}{LETTER_HELP[letter]}")
    for method in METHODS.values():
        for name, knob in method.knobs.params.items():
            console.print(f"  {name:<7}{knob.help} ({method.name})")
