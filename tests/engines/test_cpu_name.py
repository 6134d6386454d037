"""The processor's name, as Linux has it for each kind of processor."""

import pytest

from xshare.engines import cpu_name as named
from xshare.engines.cpu_name import cpu_name

X86 = "processor\t: 0\nmodel name\t: AMD EPYC 9654\nflags\t\t: a: b\n\nprocessor\t: 1\nmodel name\t: AMD EPYC 9654\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n\nprocessor\t: 1\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [(X86, "AMD EPYC 9654"), (ARM, "aarch64 0x41 0xd0c"), ("", "as Python says"), (None, "as Python says")],
    ids=["x86", "arm", "empty", "no file"],
)
def test_the_name(tmp_path, monkeypatch, text, name):
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(named, "CPUINFO", file)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("platform.processor", lambda: "as Python says")
    assert cpu_name() == name
    monkeypatch.setattr("platform.processor", lambda: "")
    assert cpu_name() == (None if name == "as Python says" else name)
