"""Spaces: where a reader would put them between words and marks."""

import pytest

from unmask.text.detokenize import with_spaces


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", ""),
        ("hello", "hello"),
        ("two men , one dog and a cat .", "two men, one dog and a cat."),
        ("who ? me ! well ; no : yes …", "who? me! well; no: yes…"),
        ("( one ) [ two ] { three }", "(one) [two] {three}"),
        ("a man ' s hat isn ' t here , they ' re", "a man's hat isn't here, they're"),
        ("A MAN ' S HAT", "A MAN'S HAT"),
        ("the dogs ' tails", "the dogs' tails"),
        ("at 5 o ' clock", "at 5 o'clock"),
        ("a well - known t - shirt", "a well-known t-shirt"),
        ("vor - und nachteile", "vor- und nachteile"),
        ("Vor - UND Nachteile", "Vor- UND Nachteile"),
        ("and / or , he / she", "and/or, he/she"),
        ("me @ example . com", "me@example. com"),
        ("- 5 degrees -", "- 5 degrees -"),
        ("3 . 50 at 10 : 30", "3.50 at 10:30"),
        ("1 , 200 , 000 and 1 , 2 , 3", "1,200,000 and 1, 2, 3"),
        ("$ 5 is 10 %", "$5 is 10%"),
        ('he said " stop ! " and " go "', 'he said "stop!" and "go"'),
        ('" a " " b "', '"a" "b"'),
        ("er sagt „ halt “ , dann „ los “ .", "er sagt „halt“, dann „los“."),
        ("he said “ stop ” , then “ go ” .", "he said “stop”, then “go”."),
        ("« oui » et « non »", "«oui» et «non»"),
        ("¿ qué ? ¡ nada !", "¿qué? ¡nada!"),
        ("我 爱 你 ， 你 好 。", "我爱你，你好。"),
        ("（ 我 ） 《 书 》", "（我）《书》"),
        ("他 说 ： 「 好 」 ， ok 。", "他说：「好」，ok。"),
        ("ねこ が いる 。", "ねこがいる。"),
        (". , first", "., first"),
        ('only " one', 'only "one'),
    ],
)
def test_words_are_joined_as_they_are_written(words, text):
    assert with_spaces(words.split()) == text


def test_no_character_is_lost_or_changed():
    words = "« a - / ' s \" 3 , 4 中 „ b “ ( ) ' n ' ”".split()
    assert with_spaces(words).replace(" ", "") == "".join(words)
