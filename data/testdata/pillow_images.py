"""Writes the images in the folder images: python3 pillow_images.py

TestImageFormats reads these files of Pillow: 8 by 6 pixels, red
rising to the right, green rising downwards, blue 120.
"""
import pathlib

from PIL import Image

HERE = pathlib.Path(__file__).parent / "images"
WIDTH, HEIGHT = 8, 6

colour = Image.new("RGB", (WIDTH, HEIGHT))
colour.putdata([(30 * x, 40 * y, 120) for y in range(HEIGHT) for x in range(WIDTH)])
grey = Image.new("L", (WIDTH, HEIGHT))
grey.putdata([30 * x + y for y in range(HEIGHT) for x in range(WIDTH)])
alpha = Image.new("L", (WIDTH, HEIGHT))
alpha.putdata([60 * y if x < 4 else 0 for y in range(HEIGHT) for x in range(WIDTH)])
clear = colour.copy()
clear.putalpha(alpha)
grey_clear = grey.copy()
grey_clear.putalpha(alpha)
deep = Image.new("I;16", (WIDTH, HEIGHT))
for y in range(HEIGHT):
    for x in range(WIDTH):
        deep.putpixel((x, y), (30 * x + y) * 256 + 255)
paletted = colour.quantize(64)

colour.save(HERE / "colour.png")
clear.save(HERE / "colour_alpha.png")
grey.save(HERE / "grey.png")
grey_clear.save(HERE / "grey_alpha.png")
deep.save(HERE / "grey_16bit.png")
paletted.save(HERE / "colour_paletted.png")
paletted.save(HERE / "colour_paletted_alpha.png", transparency=3)
colour.save(HERE / "colour.jpg", quality=98, subsampling=0)
colour.save(HERE / "colour_progressive.jpg", quality=98, subsampling=0, progressive=True)
colour.convert("CMYK").save(HERE / "colour_cmyk.jpg", quality=98, subsampling=0)
grey.save(HERE / "grey.jpg", quality=98)
paletted.save(HERE / "colour.gif")
paletted.save(HERE / "colour_animated.gif", save_all=True, append_images=[grey.convert("P")])
colour.save(HERE / "colour_lossless.webp", lossless=True, exact=True)
clear.save(HERE / "colour_lossless_alpha.webp", lossless=True, exact=True)
colour.save(HERE / "colour_lossy.webp", quality=100)
colour.save(HERE / "colour.bmp")
paletted.save(HERE / "colour_paletted.bmp")
