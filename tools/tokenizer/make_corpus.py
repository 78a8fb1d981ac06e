#!/usr/bin/env python3
"""Writes a corpus on which two tokenizers are compared: a JSON list of texts, over 1 MB together.

    tools/tokenizer/make_corpus.py OUTPUT
    tools/tokenizer/make_corpus.py --small OUTPUT      (tests/data/tokenizer/texts.json)

The same bytes on every machine: its own generator of random numbers, and only characters whose class
has been the same in all versions of Unicode since 13 (each range below was complete by then; what
3.2 did not know yet is left out of the ranges and listed by itself).
"""

import json
import sys
import unicodedata

# Ranges by script; unassigned code points inside fall out through the table of Unicode 3.2.
SCRIPTS = {
    "latin": [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x1E00, 0x1EFF)],
    "greek": [(0x370, 0x3FF), (0x1F00, 0x1FFF)],
    "cyrillic": [(0x400, 0x4FF)],
    "armenian": [(0x531, 0x58F)],
    "hebrew": [(0x591, 0x5F4)],
    "arabic": [(0x60C, 0x6ED), (0x6F0, 0x6FE)],
    "devanagari": [(0x901, 0x970)],
    "bengali": [(0x981, 0x9FA)],
    "tamil": [(0xB82, 0xBF2)],
    "thai": [(0xE01, 0xE5B)],
    "tibetan": [(0xF00, 0xFCF)],
    "georgian": [(0x10A0, 0x10FB)],
    "hangul": [(0xAC00, 0xD7A3), (0x1100, 0x11F9), (0x3131, 0x318E)],
    "ethiopic": [(0x1200, 0x137C)],
    "cherokee": [(0x13A0, 0x13F4)],
    "khmer": [(0x1780, 0x17E9)],
    "mongolian": [(0x1800, 0x180D), (0x1810, 0x18A9)],
    "kana": [(0x3041, 0x30FF)],
    "han": [(0x4E00, 0x9FA5)],
    "han edges": [(0x3400, 0x3450), (0x4DB0, 0x4DB5), (0x9F90, 0x9FA5), (0xF900, 0xFA2D),
                  (0x20000, 0x20100), (0x3005, 0x3029)],
    "numbers": [(0x30, 0x39), (0x660, 0x669), (0x966, 0x96F), (0xB2, 0xB3), (0xBC, 0xBE), (0x2150, 0x2183),
                (0x2460, 0x249B), (0xFF10, 0xFF19), (0x1D7CE, 0x1D7FF), (0x3220, 0x3229)],
    "punctuation": [(0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E), (0xA1, 0xBF), (0x2010, 0x2027),
                    (0x2030, 0x2052), (0x3001, 0x3003), (0x3008, 0x301F), (0xFF01, 0xFF0F), (0xFF5C, 0xFF5C)],
    "symbols": [(0x20A0, 0x20B1), (0x2190, 0x23CE), (0x2500, 0x2613), (0x2701, 0x27BE), (0x2800, 0x28FF)],
    "marks": [(0x300, 0x34F), (0x360, 0x36F), (0x20D0, 0x20EA), (0xFE00, 0xFE0F)],
    "blanks": [(0x09, 0x0D), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
               (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)],
    "controls": [(0x00, 0x1F), (0x7F, 0x9F), (0xAD, 0xAD), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x2063),
                 (0xE000, 0xE010), (0xFEFF, 0xFEFF), (0xFFF9, 0xFFFD), (0xE0020, 0xE007F)],
    "math": [(0x1D400, 0x1D4A0), (0x1D100, 0x1D126), (0x10300, 0x1031E), (0x10400, 0x10425)],
}
# Assigned after 3.2 and unchanged since 13 at the latest.
EMOJI = [chr(c) for low, high in [(0x1F300, 0x1F64F), (0x1F680, 0x1F6C5), (0x1F910, 0x1F93A),
                                  (0x1F1E6, 0x1F1FF), (0x2614, 0x2615), (0x26BD, 0x26BE)]
         for c in range(low, high + 1)]
SEQUENCES = ["👩‍💻", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇯🇵", "👍🏽", "❤️", "1️⃣", "🤷🏻‍♀️", "☺️"]

WORDS = """the of and a to in is was he for it with as his on be at by i this had not are but from or
have an they which one you were all her she there would their we him been has when who will no more if
out so said what up its about into than them can only other time new some could these two may first
then do any like my now over such our man me even most made after also did many off before must well
back through years where much your way down should because long each just state people those too mr
how little good world make very year still see own work men day get here old life both between being
under three never know same last another while us might great go come since against right came take
used himself few house use during without again place American around however home small found Mrs
thought went say part once general high upon school every don't it's I'm we'll they've he'd naïve café
Übermensch façade coöperate résumé jalapeño Straße garçon piñata Ångström Dvořák""".split()

EXACT = [
    "501", "2026-11-29", "rfid501.go", "1234567890", "3.14159", "1,000,000.00", "0x7fff", "1e-9", "v1.2.3",
    "１２３４５", "٠١٢٣٤٥٦٧٨٩", "½⅓¾", "Ⅷ", "①②③④", "x²+y²=z³", "cafe\u0301", "café", "e\u0301\u0301\u0301", "\u0301abc",
    "ﬁne ﬂour", "İstanbul", "ǅungla", "DŽ", "ß", "ΌΔΥΣΣΕΎΣ", "你好world", "world你好", "コーヒー・カップ", "ｶﾀｶﾅ",
    "東京2026年", "한국어 텍스트", "日本語のテキスト、です。", "「引用」", "（全角）", "ー゛゜", "ゟヿ", "々〆〇", "龥龦",
    "don't", "DON'T", "'tis", "'été", "_private", "__init__", "a_b", "$var", "@user", "#tag", "C++", "C#", "f(x)",
    "if (a<b && c>d) {return;}", "<div class=\"x\">", "</div>", "http://example.org/a?b=c&d=e#f", "a@b.org",
    "\r\n", "\r\n\r\n", "\n\r", "a\r\nb", "a \r\n b", "a\n\n\nb", "   \n   x", "\t\tx", " \t x", "\u00a0x", "\u3000x", "x\u2028y",
    "\u0085x", " \u0085 x", "\ufeffx", "\u180ex", "\u001cx", "\u200bx", "\u00adx", "!?\n\n", "...\r\n", " ...\n", "—\n—", "¿Qué?", "¡Olé!",
    "\x00", "\x00\x00a", "\x01\x02\x03abc", "\x01\x02\x03 abc", "\x1b[31mred\x1b[0m", "\x7f", "\x80\x81", "\ue000\ue001x", "\ue000 x",
    "\ufdd0", "\uffff", "\U0010ffff", "<｜User｜>", "<｜User｜", "<<｜User｜>>", "<think>ok</think>", "<｜DSML｜invoke", "｜DSML｜", "<|EOT|>",
    "<｜begin▁of▁sentence｜>", "<｜place▁holder▁no▁12｜>", "<｜place▁holder▁no▁1｜>2", "<|place_holder_mm_span_0442|>",
    "<dsml:x>", "</dsml:x>", "<｜｜DSML｜｜>", "｜｜", "▁", "▁▁",
]

CODE = [
    "for (size_t i = 0; i < n; i++) {\n    sum += a[i] * b[i];\n}\n",
    "def f(x):\n\treturn x ** 2  # ok\n\n\nclass A(B):\n    pass\n",
    "SELECT a.id, COUNT(*) FROM t AS a WHERE a.x <> 'y' GROUP BY 1;\r\n",
    "{\"key\": [1, 2.5, -3e10, null, true], \"nested\": {\"a\": \"\\u00e9\"}}\n",
    "let s = `${a}-${b}`; // => \"x\"\nconst re = /^[\\w.-]+$/gu;\n",
    "#include <stdio.h>\n\nint main(void) { return printf(\"%d\\n\", 42) < 0; }\n",
    "$ ls -la | grep '^d' && echo \"$HOME\" >> /dev/null 2>&1\n",
    "| a | b |\n|---|:-:|\n| 1 | **x** |\n\n> quote\n\n1. item\n   - sub\n",
    "\\begin{equation} \\frac{\\partial u}{\\partial t} = \\alpha \\nabla^2 u \\end{equation}\n",
]


class Random:
    """xorshift64*: not good, but the same everywhere."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        x = self.state
        x ^= x >> 12
        x = (x ^ x << 25) & (1 << 64) - 1
        x ^= x >> 27
        self.state = x
        return (x * 0x2545F4914F6CDD1D >> 20 & 0xFFFFFFFF) % n

    def pick(self, items):
        return items[self.below(len(items))]


def alphabet(ranges):
    old = unicodedata.ucd_3_2_0
    return [chr(c) for low, high in ranges for c in range(low, high + 1) if old.category(chr(c)) != "Cn"]


def prose(random, n):
    words = [random.pick(WORDS) for _ in range(n)]
    text = ""
    for word in words:
        text += word.capitalize() if random.below(9) == 0 else word
        text += random.pick([" ", " ", " ", " ", " ", " ", ", ", ". ", "; ", "\n", "-", "  ", "? ", "!\n\n"])
    return text


def script_text(random, letters, n):
    text = ""
    for _ in range(n):
        text += "".join(random.pick(letters) for _ in range(1 + random.below(8)))
        text += random.pick([" ", " ", "", "\n", ", ", "。", "1", "12", "12345", "-"])
    return text


def mixture(random, pools, n):
    """Every neighbourhood of classes: short runs of characters of random pools."""
    text = ""
    for _ in range(n):
        pool = random.pick(pools)
        text += "".join(random.pick(pool) for _ in range(1 + random.below(3)))
    return text


def long_runs(random):
    units = [" ", "\n", "\t", "a", "A", "=", "-", "*", "0", "7", "\r\n", " \n", "\u00a0", "哈", "あ", "!?", "ab", "\u0301",
             "<", "😀", "\x00", "\u3000", "<｜"]
    return random.pick(units) * (1 + random.below(400)) + random.pick(["", "x", " x", "\n", "1", "。", "你"])


def corpus():
    random = Random(20261129)
    pools = [alphabet(ranges) for ranges in SCRIPTS.values()] + [EMOJI, SEQUENCES, [" "], ["\n"], ["a", "b"], EXACT]
    texts = list(EXACT)
    texts += [a + b + c for a in EXACT[::3] for b in ("", " ", "\n", "1") for c in EXACT[1::7]]
    texts += [prose(random, 60) for _ in range(900)]
    texts += CODE + [random.pick(CODE) + random.pick(CODE) + prose(random, 5) for _ in range(500)]
    for pool in pools:
        texts += [script_text(random, pool, 25) for _ in range(12)]
    texts += [mixture(random, pools, 40) for _ in range(4000)]
    texts += [long_runs(random) for _ in range(300)]
    texts += ["a" * 20000, " " * 20000 + "x", "\n" * 5000, "=" * 7000 + "\n", "はは" * 3000, "12" * 3000]
    return texts


def small_corpus():
    random = Random(501)
    pools = [alphabet(ranges) for ranges in SCRIPTS.values()] + [EMOJI, SEQUENCES, [" "], ["\n"], ["a", "b"], EXACT]
    texts = EXACT + CODE + [prose(random, 60) for _ in range(40)]
    texts += [script_text(random, pool, 4) for pool in pools]
    texts += [mixture(random, pools, 12) for _ in range(400)]
    return texts + [long_runs(random) for _ in range(30)]


def main():
    small = sys.argv[1:2] == ["--small"]
    texts = small_corpus() if small else corpus()
    assert small or sum(len(text.encode()) for text in texts) > 1 << 20
    with open(sys.argv[-1], "w", encoding="utf-8", newline="\n") as out:
        json.dump(texts, out, ensure_ascii=False, indent=0)


if __name__ == "__main__":
    main()
