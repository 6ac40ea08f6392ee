from genmeter.contract import Score


class Level:
    def score(self, items, params):
        return [Score(float(item["image"].values.mean()), flags=item["image"].flags) for item in items]
