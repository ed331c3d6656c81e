"""What there is: the kernels, and every configuration of every card with the reason of its choice.

python -m soak_kernels.catalogue [--json]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from soak_kernels.members import MEMBERS, Member
from soak_kernels.shape import head_dims_in_words
from soak_kernels.tuning import PASSES, POLICY


@dataclass(frozen=True)
class Entry:
    """One configuration. role: "product", or "negative": kept to show why it is none; causal, seq_len_max:
    None for any."""

    arch: str
    kernel: str
    role: str
    pass_: str
    head_dim: int
    causal: bool | None
    seq_len_max: int | None
    config: str
    reason: str


def catalogue() -> list[Entry]:
    """The policy's lines, then what sm_90 (Triton 3.6 and above) and gfx906 (3.9) have of their own."""
    entries = [
        Entry(rule.arch, "flash_v2", "product", rule.pass_, rule.head_dim, rule.causal, rule.seq_len_max,
        rule.tile.name,
              rule.reason)
        for rule in POLICY
    ]  # fmt: skip
    try:
        from soak_kernels.flash_hopper import CONFIGS
    except ImportError:  # no Triton, or one older than 3.6
        pass
    else:
        entries += [
            Entry("sm_90", "flash_hopper", "product", pass_, head_dim, None, None, config.name,
                  "; ".join(config.reasons))
            for head_dim, config in CONFIGS.items()
            for pass_ in PASSES
        ]  # fmt: skip
    try:
        from soak_kernels.gfx906.configurations import configurations
    except ImportError:  # no Triton, or one older than 3.9: gfx906 has nothing that it could compile
        return entries
    return entries + [
        Entry("gfx906", c.kernel, c.role, c.pass_, c.head_dim, c.causal, None, c.tile, c.reason)
        for c in configurations()
    ]


def kernels() -> list[str]:
    """A line for each kernel, name, what it takes, whether it can carry a load; then what it is."""
    lines = [f"{'kernel':15}{'cards':8}{'head_dim':34}{'types':29}{'backward':10}soak run"]
    for member in MEMBERS.values():
        lines += [_line(member), f"{'':15}{member.summary}"]
    return lines


def _line(member: Member) -> str:
    head_dims = head_dims_in_words(member.head_dims)
    load = "yes" if member.no_load is None else f"no: {member.no_load}"
    return (
        f"{member.name:15}{member.arch or 'any':8}{head_dims:34}{', '.join(member.dtypes):29}"
        f"{member.backward:10}{load}"
    )


def main(argv: Sequence[str]) -> int:
    """Print both lists; with --json the configurations alone. 0."""
    entries = catalogue()
    if "--json" in argv:
        rows = [asdict(entry) for entry in entries]
        print(
            json.dumps([{"pass" if k == "pass_" else k: v for k, v in row.items()} for row in rows], indent=1)
        )
        return 0
    print("\n".join([*kernels(), "", "What has a tile of its own:"]))
    print(
        f"{'arch':8}{'kernel':15}{'role':10}{'pass':9}{'dim':>4} {'mask':7}{'rows':>6}  {'config':34}reason"
    )
    for e in entries:
        mask = {None: "any", True: "causal", False: "full"}[e.causal]
        rows_ = "any" if e.seq_len_max is None else f"<={e.seq_len_max}"
        print(
            f"{e.arch:8}{e.kernel:15}{e.role:10}{e.pass_:9}{e.head_dim:4} {mask:7}{rows_:>6}"
            f"  {e.config:34}{e.reason}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
