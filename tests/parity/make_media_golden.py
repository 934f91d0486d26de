#!/usr/bin/env python3
"""make_media_golden.py [--clips]: writes tests/data/media/golden.txt, what the published chain makes of rules, pictures and clips.

Needs torch, torchvision, Pillow 11 (later ones resize in another order) and the ffmpeg program. --clips draws the media anew, too.
A clip's frames are those that a full decode by ffmpeg gives; decord is asked as well and must agree where its seeking is right."""
import json, math, pathlib, subprocess, sys

import numpy as np
import PIL
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, functional

assert PIL.__version__.startswith("11."), "Pillow 11, please"
HERE = pathlib.Path(__file__).resolve().parent.parent / "data" / "media"
LOW, HIGH = 784 * 6, 784 * 24  # of a frame and of an image here: small ones, so that the tests are quick
SEEKS_WRONG = {"transport.ts", "field.ts", "open.mkv", "edit.mp4", "hevc.mp4", "moving.gif", "full-range.webm", "packed.avi"}


def smart_resize(height, width, low, high, factor=28):
    if max(height, width) / min(height, width) > 200:
        return -1, -1
    h, w = max(factor, round(height / factor) * factor), max(factor, round(width / factor) * factor)
    if h * w > high:
        beta = math.sqrt(height * width / high)
        h, w = (max(factor, math.floor(x / beta / factor) * factor) for x in (height, width))
    elif h * w < low:
        beta = math.sqrt(low / (height * width))
        h, w = (math.ceil(x * beta / factor) * factor for x in (height, width))
    return h, w


def frame_count(n, fps, wanted=2, low=4, high=16):
    return int(min(min(max(n / fps * wanted, low), high), n) // 2 * 2)


def indices(n, k):
    return torch.linspace(0, n - 1, k).round().long().tolist()


def noise(height, width, seed):
    x, out = seed, bytearray()
    for _ in range(height * width * 3):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        out.append(x >> 24)
    return np.frombuffer(bytes(out), np.uint8).reshape(height, width, 3)


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def as_clip(frames, h, w):
    t = torch.tensor(np.ascontiguousarray(frames)).permute(0, 3, 1, 2)
    return functional.resize(t, [h, w], interpolation=InterpolationMode.BICUBIC, antialias=True).permute(0, 2, 3, 1).contiguous().numpy()


def block_means(frame):
    h, w, _ = frame.shape
    return [int(frame[h * y // 8:h * (y + 1) // 8, w * x // 8:w * (x + 1) // 8, c].astype(np.int64).sum()
                // ((h * (y + 1) // 8 - h * y // 8) * (w * (x + 1) // 8 - w * x // 8)))
            for y in range(8) for x in range(8) for c in range(3)]


def run(*command):
    return subprocess.run(command, check=True, capture_output=True).stdout


def draw():
    """The media: small, each with what makes readers stumble."""
    ff = ("ffmpeg", "-v", "error", "-y", "-nostdin", "-threads", "1")
    clip = ("-f", "lavfi", "-i", "testsrc2=s=98x66:r=12:d=3")
    exact = ("-fflags", "+bitexact", "-flags:v", "+bitexact")
    for name, options in {
        "b-frames.mp4": ("-c:v", "libx264", "-g", "12", "-bf", "3"),
        "open.mkv": ("-c:v", "libx264", "-g", "8", "-bf", "3", "-x264-params", "open-gop=1"),
        "transport.ts": ("-c:v", "libx264", "-g", "10", "-bf", "2"),
        "field.ts": ("-c:v", "mpeg2video", "-flags:v", "+ilme+ildct+bitexact", "-g", "9", "-bf", "2", "-b:v", "300k"),
        "full-range.webm": ("-vf", "scale=out_range=full", "-color_range", "pc", "-c:v", "libvpx-vp9", "-deadline", "realtime", "-cpu-used", "8", "-b:v", "60k", "-g", "12"),
        "hidden.webm": ("-c:v", "libvpx", "-auto-alt-ref", "1", "-lag-in-frames", "16", "-b:v", "60k"),
        "ten-bit.mkv": ("-c:v", "libx264", "-pix_fmt", "yuv420p10le"),
        "hevc.mp4": ("-c:v", "libx265", "-x265-params", "log-level=error:keyint=12", "-tag:v", "hvc1"),
        "varied.mp4": ("-vf", "setpts=N/12/TB+floor(N/10)*0.17/TB", "-fps_mode", "vfr", "-c:v", "libx264"),
        "packed.avi": ("-c:v", "mpeg4", "-bf", "2", "-b:v", "60k"),
        "moving.gif": ("-r", "6"),
        "bt709.mp4": ("-vf", "scale=out_color_matrix=bt709", "-colorspace", "bt709", "-c:v", "libx264", "-g", "1"),
    }.items():
        pixels = () if "-pix_fmt" in options or name.endswith(".gif") else ("-pix_fmt", "yuv420p")
        run(*ff, *clip, *options, *pixels, *exact, str(HERE / name))
    run(*ff, "-ss", "0.6", "-i", str(HERE / "b-frames.mp4"), "-c", "copy", *exact, str(HERE / "edit.mp4"))
    run(*ff, "-i", str(HERE / "b-frames.mp4"), "-c", "copy", *exact, "-metadata:s:v", "rotate=90", str(HERE / "turned.mp4"))
    run(*ff, "-f", "lavfi", "-i", "testsrc2=s=98x66:r=12", "-frames:v", "3", "-c:v", "libx264", "-pix_fmt", "yuv420p", *exact, str(HERE / "three.mp4"))
    y, x = np.mgrid[0:75, 0:103]
    rgb = np.stack([x * 255 // 102, y * 255 // 74, x * y % 256], -1).astype(np.uint8)
    rgb[20:40, 25:60] = noise(20, 35, 5)
    image = Image.fromarray(rgb)
    image.save(HERE / "plain-%03d.png")
    clear = image.copy()
    clear.putalpha(Image.fromarray(((x + y) % 256).astype(np.uint8)))
    clear.save(HERE / "alpha.png")
    clear.save(HERE / "alpha.webp", quality=80)
    image.quantize(60).save(HERE / "palette.png", transparency=bytes(range(60)))
    image.save(HERE / "one-clear.png", transparency=(255, 0, 0))
    gray = image.convert("L")
    gray.putalpha(Image.fromarray((x % 256).astype(np.uint8)))
    gray.save(HERE / "gray-alpha.png")
    Image.fromarray(rgb[..., 0].astype(np.uint16) * 3).save(HERE / "gray-16.png")
    run(*ff, "-i", str(HERE / "alpha.png"), "-pix_fmt", "rgba64be", *exact, str(HERE / "alpha-16.png"))
    exif = Image.Exif()
    exif[0x112] = 6
    image.save(HERE / "photo.jpg", quality=88, exif=exif)
    image.save(HERE / "photo-422.jpg", quality=88, subsampling=1)
    image.save(HERE / "photo.webp", quality=80)


def all_frames(path):
    facts = json.loads(run("ffprobe", "-v", "error", "-select_streams", "v:0", "-show_entries", "stream=avg_frame_rate", "-of", "json", str(path)))
    over, under = map(int, facts["streams"][0]["avg_frame_rate"].split("/"))
    get = ("ffmpeg", "-v", "error", "-nostdin", "-i", str(path), "-map", "0:v:0", "-fps_mode", "passthrough")
    width, height = map(int, run(*get, "-frames:v", "1", "-f", "image2pipe", "-c:v", "ppm", "-").split(b"\n")[1].split())
    raw = np.frombuffer(run(*get, "-sws_flags", "bilinear", "-pix_fmt", "rgb24", "-f", "rawvideo", "-"), np.uint8)
    shown = json.loads(run("ffprobe", "-v", "error", "-select_streams", "v:0", "-show_entries", "frame=best_effort_timestamp_time", "-of", "json", str(path)))["frames"]
    known = all("best_effort_timestamp_time" in f for f in shown)
    times = [float(f["best_effort_timestamp_time"]) if known else i * under / over for i, f in enumerate(shown)]
    frames = raw.reshape(-1, height, width, 3)
    assert len(frames) == len(times), path
    return frames, times, over / under


def clip_lines(path):
    frames, times, fps = all_frames(path)
    k = frame_count(len(frames), fps)
    chosen = indices(len(frames), k)
    h, w = smart_resize(frames.shape[1], frames.shape[2], LOW, HIGH)
    out = as_clip(frames[chosen], h, w)
    if path.name not in SEEKS_WRONG:
        import decord
        reader = decord.VideoReader(str(path))
        assert len(reader) == len(frames) and (reader.get_batch(chosen).asnumpy() == frames[chosen]).all(), f"decord differs on {path.name}"
    yield f"clip {path.name} {k} {h} {w} {2 / (k / len(frames) * fps):.9g} " + " ".join(f"{times[i] - times[0]:.6f}" for i in chosen)
    for frame in out:
        yield "means " + " ".join(map(str, block_means(frame)))


def image_lines(path):
    image = Image.open(path)
    if image.mode == "RGBA":
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(image, mask=image.split()[3])
        image = white
    image = image.convert("RGB")
    h, w = smart_resize(image.height, image.width, LOW, HIGH)
    out = np.asarray(image.resize((w, h), Image.BICUBIC))
    sure = "-" if path.suffix == ".jpg" else fnv(out.tobytes())
    yield f"image {path.name} {h} {w} {sure}"
    yield "means " + " ".join(map(str, block_means(out)))


def lines():
    for h, w in [(1, 1), (28, 28), (480, 640), (640, 480), (1080, 1920), (42, 70), (14, 2800), (14, 2801), (1, 200), (1, 201), (2160, 3840), (70, 98), (364, 504), (101, 1003), (10000, 50), (7, 900)]:
        for low, high in [(100352, 105369), (3136, 200704), (784, 784 * 9), (100352, 300000.5)]:
            yield "size {} {} {} {} {} {}".format(h, w, low, high, *smart_resize(h, w, low, high))
    for n, fps in [(4, 25), (5, 25), (7, 1), (100, 25), (75, 29.97), (1193, 29.97), (66, 30), (9, 2.5), (17, 4), (1000000, 30), (16, 1.5)]:
        k = frame_count(n, fps)
        yield f"count {n} {fps} {k} " + " ".join(map(str, indices(n, k)))
    for seed, (h, w, oh, ow) in enumerate([(66, 98, 84, 112), (66, 98, 28, 56), (31, 240, 28, 112), (200, 33, 56, 28), (5, 7, 28, 28), (84, 56, 84, 56), (101, 103, 56, 56)]):
        picture = noise(h, w, seed)
        yield f"resize {h} {w} {oh} {ow} {seed} {fnv(as_clip(picture[None], oh, ow)[0].tobytes())} " + fnv(np.asarray(Image.fromarray(picture).resize((ow, oh), Image.BICUBIC)).tobytes())
    for path in sorted(HERE.iterdir()):
        if path.suffix in (".png", ".jpg", ".webp"):
            yield from image_lines(path)
        elif path.suffix != ".txt" and path.name != "three.mp4":
            yield from clip_lines(path)


if __name__ == "__main__":
    HERE.mkdir(parents=True, exist_ok=True)
    if "--clips" in sys.argv:
        draw()
    (HERE / "golden.txt").write_text("\n".join(lines()) + "\n")
