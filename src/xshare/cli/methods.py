"""`xshare methods`: the selection methods, their knobs and the presets."""

from xshare.cli.output import wide_console
from xshare.methods import METHODS
from xshare.policy import LETTERS, PRESETS

LETTER_HELP = {
    "k0": "best experts each token is sure to keep",
    "m": "experts added for the batch",
    "mr": "experts added for each request",
    "mg": "experts each device is filled up to",
    "tau": "share of the gating score to reach",
    "rho": "share of its own routing weight that every token is sure to keep",
    "lam": "votes that an expert must bring to be loaded, in place of a budget",
    "p": "power of the votes, so that tokens that lean on an expert outweigh those that hardly use it",
    "ml": "another m in some layers, by the model's own layer numbers, as ml=0:24/3:8",
    "w": "weights of layers, which divide their lam and what their rho may lose, as w=0:4",
    "fill": "level or rounds, how devices are filled",
    "score": "topk or full, what is summed: a token's own weights, or all its scores",
}


def methods() -> None:
    """List the selection methods, one line each, with their knobs."""
    console = wide_console()
    for method in sorted(METHODS.values(), key=lambda method: (method.name != "xshare", method.name)):
        console.print(f"[bold]{method.name:<11}[/bold]{method.summary}")
        console.print(f"{'':<11}[dim]knobs: {method.knobs.names_text()}[/dim]")
    console.print("\nknobs, as in [bold]rho=0.7[/bold] or [bold]k0=1,m=24[/bold] (xshare) or [bold]oea:k0=2[/bold]")
    for letter in LETTERS:
        console.print(f"  {letter:<7}{LETTER_HELP[letter]}")
    for method in METHODS.values():
        for name, knob in method.knobs.params.items():
            console.print(f"  {name:<7}{knob.help} ({method.name})")
    console.print(
        "\nwith what experts cost on this machine (cost, a file of doctor --stairs), lam is weighed against it, and "
        "other sets\nof xshare grow as far as that is free"
    )
    console.print("\npresets, to be named in place of a policy")
    for name, text in PRESETS.items():
        console.print(f"  {name:<29}{text}")
