from genmeter.contract import Score


class Words:
    def score(self, items, params):
        return [Score(float(item["answer"] == item["expected"])) for item in items]
