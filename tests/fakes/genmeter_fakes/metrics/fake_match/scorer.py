from genmeter.contract import Score


class Match:
    def score(self, items, params):
        return [
            Score(-abs(float(item["image"].values[0, 0] - item["text"].values[0, 0])), dict(item["text"].detail))
            for item in items
        ]
