from genmeter.contract import Score


class Motion:
    def score(self, items, params):
        return [Score(float(item["clip"].values[0, 1] - item["clip"].values[0, 0])) for item in items]
