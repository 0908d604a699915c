"""Makes what trained models look at: pictures, pages of words, voices, files. It knows no model of a vendor.

Pictures come from scikit-image and scikit-learn, words are rendered by Pillow, voices are sums of harmonics with
formants and pauses. Everything follows from one seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from skimage import data
from sklearn.datasets import load_sample_images

WORDS = """
    network tensor silicon harbor window 2026 EXIT Hello World market street coffee 42 Station ticket PRICE 19.99
    open Closed Berlin Tokyo river cloud paper silver 7x9 Monday parcel number
""".split()  # noqa: SIM905 - words are easier to read than a list of strings
RUSSIAN = """
    подорожник переход водопад самолёт учительница перечитать безвкусный пароходный лесной соавторство заморозить
    передвижение неверный пригород столовая читатель звездопад бессонница разговорчивый выстроиться
""".split()  # noqa: SIM905
ARABIC = """
    ذهب الولد الى المدرسة في الصباح وقرأ الكتاب الجديد مع المعلم ثم كتب الدرس على الورق وعاد من السوق بعد الظهر
    كان البيت كبيرا والطريق طويلا قال الرجل هذا يوم جميل
""".split()  # noqa: SIM905
FRENCH = """
    marchions parlaient chantions montagnes cerisiers trouvions regardait ouvriront finissait mangerons souhaiter
    grandiras choisiras tomberont jardinier chevelure voyageurs boulanger nouvelles violettes heureuses princesse
    charmante apprenons descendre connaître fabriquer solitaire politique entourait aimerions partirait dormirent
    lumineuse grammaire mensonges fourchons printemps promenade chaussure courageux peintures traduites silencieu
""".split()  # noqa: SIM905
IMAGENET = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
_SIGNS = "ABEFGHKMPQRSTXZ2345678&%@#?"
RATE = 16000  # samples per second of speech


class Scene:
    """One seed's pictures, pages, words, voices and files."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        colour = [data.astronaut(), data.coffee(), data.chelsea(), data.rocket(), data.hubble_deep_field()]
        colour += [data.immunohistochemistry(), data.retina(), data.colorwheel(), *load_sample_images().images]
        grey = [data.camera(), data.coins(), data.page(), data.text()]
        self.photos = [*colour, *(np.repeat(picture[..., None], 3, 2) for picture in grey)]

    def photo(self, height: int, width: int) -> Any:
        """A part of a photograph, uint8 [height, width, 3]."""
        picture = self.photos[self.random.integers(len(self.photos))]
        share = self.random.uniform(0.5, 1)
        high, wide = (int(size * share) for size in picture.shape[:2])
        top = self.random.integers(0, picture.shape[0] - high + 1)
        left = self.random.integers(0, picture.shape[1] - wide + 1)
        part = Image.fromarray(picture[top : top + high, left : left + wide]).resize((width, height))
        return np.asarray(part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if self.random.random() < 0.5 else part)

    def word(self, height: int, width: int, *, upside_down: bool = False, text: str = "") -> Any:
        """One or two dark words on a light ground with noise, uint8 [height, width, 3]; ``text`` gives others."""
        text = text or " ".join(self.random.choice(WORDS, self.random.integers(1, 3)))
        font = ImageFont.load_default(size=int(height * self.random.uniform(0.55, 0.75)))
        picture = Image.new("RGB", (width, height), (int(self.random.integers(150, 256)),) * 3)
        ImageDraw.Draw(picture).text((4, height // 12), text, fill=(int(self.random.integers(0, 90)),) * 3, font=font)
        drawn = np.asarray(picture.rotate(180) if upside_down else picture).astype(np.float32)
        return np.clip(drawn + self.random.normal(0, 6, drawn.shape), 0, 255).astype(np.uint8)

    def icon(self, size: int) -> tuple[Any, int]:
        """A sign in colours on a part of a photograph, turned a little, uint8 [size, size, 3], and which sign it is."""
        kind = int(self.random.integers(len(_SIGNS)))
        return self.sign(size, kind), kind

    def sign(self, size: int, kind: int) -> Any:
        """One of the signs, as ``icon`` shows it."""
        big = 4 * size
        drawn = Image.new("L", (big, big), 0)
        font = ImageFont.load_default(size=int(big * self.random.uniform(0.6, 0.8)))
        ImageDraw.Draw(drawn).text((big / 2, big / 2), _SIGNS[kind], fill=255, font=font, anchor="mm")
        mask = drawn.rotate(float(self.random.uniform(-30, 30))).resize((size, size))
        colour = tuple(int(value) for value in self.random.integers(0, 256, 3))
        ground = Image.fromarray(self.photo(size, size))
        return np.asarray(Image.composite(Image.new("RGB", (size, size), colour), ground, mask))

    def page(self, height: int, width: int) -> Any:
        """Words in boxes on a photograph or on paper, uint8 [height, width, 3]."""
        plain = Image.new("RGB", (width, height), (int(self.random.integers(200, 256)),) * 3)
        picture = Image.fromarray(self.photo(height, width)) if self.random.random() < 0.5 else plain
        draw = ImageDraw.Draw(picture)
        for _ in range(self.random.integers(3, 8)):
            size, text = int(self.random.integers(14, 40)), str(self.random.choice(WORDS))
            left, top = int(self.random.integers(0, max(1, width - 150))), int(self.random.integers(0, height - 50))
            draw.rectangle((left - 3, top - 2, left + len(text) * size * 0.62, top + size * 1.25), fill=(250, 250, 245))
            draw.text((left, top), text, fill=(10, 10, 20), font=ImageFont.load_default(size=size))
        return np.asarray(picture)

    def voice(self, samples: int) -> Any:
        """Voiced sounds with pauses and a little noise, float32 [samples]."""
        time, sound, at = np.arange(samples) / RATE, np.zeros(samples), 0
        while at < samples:
            part = slice(at, min(samples, at + int(self.random.uniform(0.15, 0.5) * RATE)))
            if self.random.random() < 0.6:
                pitch, formants = self.random.uniform(90, 220), self.random.uniform((400, 1100), (900, 2400))
                for harmonic in range(1, 25):
                    near = np.exp(-(((pitch * harmonic - formants) / (150, 200)) ** 2)).sum()
                    wave = np.sin(2 * np.pi * pitch * harmonic * time[part] + self.random.uniform(0, 6))
                    sound[part] += 0.12 * (1 + 2 * near) / harmonic * wave * np.hanning(part.stop - part.start)
            at = part.stop
        return (sound + self.random.normal(0, 0.003, samples)).astype(np.float32)

    def chord(self, samples: int, rate: int) -> Any:
        """Three notes of an instrument that fade, float32 [samples]."""
        time = np.arange(samples) / rate
        sound = self.random.normal(0, 0.002, samples)
        for _ in range(3):
            pitch, start = 110 * 2 ** (self.random.integers(0, 37) / 12), self.random.uniform(0, 1)
            fading = np.exp(-3 * np.clip(time - start, 0, None)) * (time >= start)
            sound += sum(0.2 / k * fading * np.sin(2 * np.pi * pitch * k * time) for k in range(1, 7))
        return sound.astype(np.float32)

    def mel(self, frames: int, bands: int, step: float = 0.01, window: float = 0.025) -> Any:
        """Logarithms of a voice's energies in bands of the mel scale, float32 [frames, bands]."""
        size, hop = int(window * RATE), int(step * RATE)
        sound = self.voice(size + hop * (frames - 1))
        parts = np.lib.stride_tricks.sliding_window_view(sound, size)[::hop]
        power = np.abs(np.fft.rfft(parts * np.hamming(size), 512)) ** 2
        edges = 700 * (10 ** (np.linspace(0, 2840, bands + 2) / 2595) - 1)  # 2840 mel are 8 kHz
        bins = np.arange(power.shape[1]) * RATE / 512
        rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
        falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
        return np.log(power @ np.clip(np.minimum(rising, falling), 0, None).T + 1e-10).astype(np.float32)

    def clouds(self, size: int) -> Any:
        """Land from above with clouds and their shadows: blue, green, red, near infrared, float32 [size, size, 4]."""
        land = self.photo(size, size).astype(np.float32)[..., ::-1] / 255 * 0.25
        infrared = np.clip(0.1 + land[..., 1:2] * self.random.uniform(1, 2), 0, 0.5)
        bands = np.concatenate([land, infrared], -1)
        coarse = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.fftfreq(size)[None]) ** 1.7
        coarse[0, 0] = np.inf
        heights = np.fft.ifft2(np.fft.fft2(self.random.normal(0, 1, (size, size))) / coarse).real
        heights = (heights / heights.std())[..., None]
        thick = np.clip(heights - self.random.uniform(-0.3, 0.8), 0, 1)
        lit = bands * (1 - 0.75 * np.roll(thick, self.random.integers(12, 40, 2), (0, 1)))  # the sun stands aside
        bright = self.random.uniform(0.6, 1.2) + 0.1 * heights
        return (lit * (1 - thick) + bright * thick).astype(np.float32)

    def molecule(self, atoms: int) -> tuple[Any, Any]:
        """Atomic numbers and bonds [atoms, atoms] of a chain with branches and rings of six."""
        numbers = self.random.choice([6, 7, 8, 16, 17], atoms, p=[0.72, 0.1, 0.12, 0.03, 0.03])
        bonds = np.zeros((atoms, atoms), np.int64)
        most = {6: 4, 7: 3, 8: 2, 16: 2, 17: 1}
        numbers[0] = 6
        for at in range(1, atoms):
            free = [to for to in range(at) if bonds[to].sum() < most[int(numbers[to])]]
            to = at - 1 if at - 1 in free and self.random.random() < 0.7 else int(self.random.choice(free or [0]))
            bonds[at, to] = bonds[to, at] = 1
            if at >= 5 and bonds[at - 5].sum() < most[int(numbers[at - 5])] > 1 < most[int(numbers[at])]:
                bonds[at, at - 5] = bonds[at - 5, at] = int(self.random.random() < 0.3)
        return numbers, bonds

    def reaction(self, sizes: tuple[int, int]) -> dict[str, Any]:
        """Two molecules that become one, as tokens: elements, neighbours, distances in bonds, sides of the arrow."""
        from scipy.sparse.csgraph import shortest_path

        (one, bonds_1), (two, bonds_2) = (self.molecule(size) for size in sizes)
        joined = np.zeros((sum(sizes),) * 2, np.int64)
        joined[: sizes[0], : sizes[0]], joined[sizes[0] :, sizes[0] :] = bonds_1, bonds_2
        place = int(self.random.integers(sizes[0])), sizes[0] + int(self.random.integers(sizes[1]))
        joined[place], joined[place[::-1]] = 1, 1
        order = self.random.permutation(sum(sizes))  # a product is written in another order
        parts = [(one, bonds_1), (two, bonds_2), (np.concatenate([one, two])[order], joined[np.ix_(order, order)])]
        length = 1 + sum(len(numbers) + 1 for numbers, _ in parts)
        atoms, near, roles = (np.zeros(length, np.int64) for _ in range(3))
        distances, at = np.zeros((length, length), np.int64), 1
        distances[0, 0], roles[0] = 1, 1
        full = {6: 4, 7: 3, 8: 2, 16: 2, 17: 1}
        for number, (numbers, bonds) in enumerate(parts):
            end = at + len(numbers) + 1
            atoms[at], distances[at:end, at:end] = 1, 1
            atoms[at + 1 : end], roles[at + 1 : end] = numbers + 2, 2 + (number == 2)
            near[at + 1 : end] = np.maximum([full[int(n)] for n in numbers], bonds.sum(0)) + 2
            paths = shortest_path(bonds, unweighted=True)
            distances[at + 1 : end, at + 1 : end] = np.where(np.isfinite(paths), np.minimum(paths, 10) + 2, 1)
            at = end
        return {"atoms": atoms[None], "neighbors": near[None], "distances": distances[None], "roles": roles[None]}

    def face(self, size: int) -> Any:
        """A face or something else, uint8 [size, size, 3]."""
        if self.random.random() < 0.5:
            return self.photo(size, size)
        top, left = (int(at + self.random.integers(-12, 13)) for at in (70, 165))  # where the astronaut's is
        side = int(self.random.integers(105, 150))
        part = Image.fromarray(self.photos[0][top : top + side, left : left + side])
        return np.asarray(part.resize((size, size)))

    def file(self) -> bytes:
        """The bytes of some file of this Python or of this system's shared data."""
        import sysconfig

        roots = [Path(sysconfig.get_paths()["stdlib"]), Path("/usr/share")]
        if not hasattr(self, "_files"):
            found = [path for root in roots for path in sorted(root.rglob("*"))[:4000]]
            self._files = [path for path in found if path.is_file() and 200 < path.stat().st_size < 200_000]
        return self._files[self.random.integers(len(self._files))].read_bytes()


def raw_planes(picture: Any) -> Any:
    """uint8 [height, width, channels] as float32 [1, channels, height, width], blue first and not normalized."""
    return np.ascontiguousarray(picture[..., ::-1].transpose(2, 0, 1)[None], np.float32)


def planes(picture: Any, mean: Any, spread: Any) -> Any:
    """uint8 [height, width, 3] as normalized float32 [1, 3, height, width]."""
    scaled = (picture.astype(np.float32) / 255 - mean) / spread
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None], np.float32)
