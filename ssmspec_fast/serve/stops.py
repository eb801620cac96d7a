"""A stop string, looked for in a text letter by letter.

    back[n] = the longest m <= n at which the first m letters are also the last m of the first n + 1        (1)

`length` is the longest beginning of the stop string with which the text read so far ends. A letter that does not continue it
falls back by (1), and each fall undoes a step forward, so a letter costs O(1) on average, whatever the stop string is.
Source: Knuth, Morris and Pratt, Fast Pattern Matching in Strings, 1977.
"""


class Stop:
    """One stop string (not empty), and how much of it the text read so far ends with."""

    def __init__(self, text: str) -> None:
        self.text, self.length = text, 0
        self.back = [0]
        for letter in text[1:]:
            self.back.append(self.after(self.back[-1], letter))

    def after(self, length: int, letter: str) -> int:
        """The length after one more letter."""
        while length and (length == len(self.text) or self.text[length] != letter):
            length = self.back[length - 1]
        return length + (self.text[length] == letter)

    def read(self, letter: str) -> bool:
        """Whether the text ends with the stop string now."""
        self.length = self.after(self.length, letter)
        return self.length == len(self.text)
