"""A flame graph as one SVG file, drawn from sampled stacks.

The outermost call is at the bottom. A frame is as wide as its share of the samples, and shows its
text and its share under the pointer. The picture is Brendan Gregg's; his script is not used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape

Stack = tuple[str, ...]

_WIDTH, _ROW, _MARGIN, _HEAD = 1200, 17, 12, 58
_LETTER = 6.3
_LEAST_WIDTH = 0.4
_WARM = ("#f6c177", "#f2a65a", "#eb8a44", "#e07a5f", "#d96c47")
_ASLEEP = "#cbd5e0"


@dataclass
class _Node:
    samples: int = 0
    children: dict[str, _Node] = field(default_factory=dict)

    def depth(self) -> int:
        return 1 + max((child.depth() for child in self.children.values()), default=-1)


def flame_graph(title: str, subtitle: str, stacks: Iterable[tuple[Stack, int]], asleep: Iterable[Stack] = ()) -> str:
    """The SVG.

    `stacks` have the outermost frame first, and their numbers of samples. Those in `asleep` are
    grey.
    """
    root, cold = _Node(), set(asleep)
    warm_frames: set[Stack] = set()
    for stack, samples in stacks:
        node = root
        node.samples += samples
        for depth, frame in enumerate(stack):
            node = node.children.setdefault(frame, _Node())
            node.samples += samples
            if stack not in cold:
                warm_frames.add(stack[: depth + 1])
    height = _HEAD + (root.depth() + 1) * _ROW + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="DejaVu Sans Mono, monospace" font-size="10.5">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{_MARGIN}" y="24" font-size="16" font-weight="bold" fill="#1f2933">{escape(title)}</text>',
        f'<text x="{_MARGIN}" y="43" fill="#7b8794">{escape(subtitle)}</text>',
    ]
    if root.samples:
        scale = (_WIDTH - 2 * _MARGIN) / root.samples
        _draw(parts, root, (), _MARGIN, height - _MARGIN - _ROW, scale, root.samples, warm_frames)
    return "\n".join([*parts, "</svg>", ""])


def _draw(
    parts: list[str], node: _Node, above: Stack, x: float, y: float, scale: float, total: int, warm: set[Stack]
) -> None:
    for frame, child in sorted(node.children.items()):
        width, stack = child.samples * scale, (*above, frame)
        if width >= _LEAST_WIDTH:
            colour = _WARM[sum(frame.encode()) % len(_WARM)] if stack in warm else _ASLEEP
            parts.append(_box(frame, child.samples / total, x, y, width, colour))
            _draw(parts, child, stack, x, y - _ROW, scale, total, warm)
        x += width


def _box(frame: str, share: float, x: float, y: float, width: float, colour: str) -> str:
    letters = int((width - 6) / _LETTER)
    text = frame if len(frame) <= letters else f"{frame[: letters - 1]}…" if letters > 3 else ""
    label = f'<text x="{x + 3:.1f}" y="{y + 12:.1f}" fill="#1f2933">{escape(text)}</text>' if text else ""
    return (
        f"<g><title>{escape(frame)}: {share:.1%}</title>"
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width - 0.5, 0.3):.1f}" height="{_ROW - 1}" rx="1.5" fill="{colour}"/>'
        f"{label}</g>"
    )
