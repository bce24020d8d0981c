def write_page(visits, events, reports, *, new_words_at):
    import pickle

    pickle.dump(
        (
            visits,
            [(e.customers, e.seconds, e.name) for e in events],
            [r.model_dump_json() for r in reports],
            new_words_at,
        ),
        open("/tmp/loop_dev/record.pkl", "wb"),
    )
    before = [v.success for v in visits[:new_words_at]]
    last = max(v.version for v in visits)
    old = [v.success for v in visits[new_words_at:] if v.version == 1]
    new = [v.success for v in visits[new_words_at:] if v.version == last]
    m = lambda x: sum(x) / max(1, len(x))
    print(
        len(before), m(before), len(old), m(old), len(new), m(new), "regained", (m(new) - m(old)) / (m(before) - m(old))
    )
