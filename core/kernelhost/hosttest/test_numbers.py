"""One end of a numbered link, by the vectors that the engine's end follows, too."""
import json
import os
import unittest

from client import ROOM, codec


class Numbers(unittest.TestCase):
    def play(self, numbers, step):
        """What one step does to a link's end, as the vector describes it."""
        got = {key: step[key] for key in ("op", "body", "number", "heard") if key in step}
        try:
            if step["op"] == "send":
                got["frame"] = numbers.send(codec.pack({"t": step["body"]})).hex()
            elif step["op"] == "take":
                if numbers.take(step["number"], step["heard"]):
                    got["fresh"] = True
            elif step["op"] == "heard":
                numbers.acknowledge(step["heard"])
            elif not numbers.can_resume(step["heard"]):
                got["fails"] = True
            else:
                again = [frame.hex() for frame in numbers.resume(step["heard"])]
                got.update({"again": again} if again else {})
        except codec.Malformed:
            got["fails"] = True
        return got

    def test_vectors(self):
        with open(os.path.join(ROOM, "..", "kernel", "testdata", "link.json")) as file:
            vectors = json.load(file)
        for vector in vectors:
            numbers = codec.Numbers()
            for i, step in enumerate(vector["steps"]):
                with self.subTest(vector["name"], step=i):
                    self.assertEqual(self.play(numbers, step), step)
            self.assertEqual(numbers.size, sum(map(len, numbers.kept)))
