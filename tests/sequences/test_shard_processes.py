"""Two processes of `torch.distributed` share an epoch; each knows its rank from there."""

from __future__ import annotations

import json

TRAINING = """
    import json
    import numpy as np
    import torch
    import torch.distributed as dist
    from trw_pipeline import SequenceArray

    def augment(batch, rng):
        return {{**batch, "noise": rng.random(1)}}

    dist.init_process_group("gloo", init_method="file://{store}", rank={rank}, world_size=2)
    chain = SequenceArray({{"x": np.arange(13)}}).with_seed(4).map(augment, nb_workers=1).batch(3)
    seen = []
    with chain.shard(remainder="pad") as train:
        for epoch in range(2):
            train.set_epoch(epoch)
            for number, batch in enumerate(train):
                nb_samples = torch.tensor([len(batch["x"])])
                dist.all_reduce(nb_samples)  # a rank with fewer batches would wait here for ever
                seen.append([epoch, number, int(nb_samples), batch["sample_uid"].tolist(), batch["noise"].tolist()])
                if (epoch, number) == (1, 0):
                    states = [None, None]
                    dist.all_gather_object(states, train.state_dict())
        with chain.shard(remainder="pad") as again:
            again.load_state_dict(states[dist.get_rank()])
            rest = [batch["sample_uid"].tolist() for batch in again]
    gathered = [None, None]
    dist.all_gather_object(gathered, [seen, rest])
    if dist.get_rank() == 0:
        print(json.dumps(gathered))
    dist.destroy_process_group()
"""


def test_two_processes_share_every_epoch_and_each_resumes_its_own_half(program, tmp_path):
    environment = {"GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        program(TRAINING.format(store=tmp_path / "store", rank=rank), environment=environment) for rank in range(2)
    ]
    results = [one.finish(timeout_s=90) for one in ranks]
    assert [result.returncode for result in results] == [0, 0], results[0].stderr + results[1].stderr
    (first, rest_of_first), (second, rest_of_second) = json.loads(results[0].stdout)
    orders = []
    for epoch in range(2):
        batches = [[one for one in seen if one[0] == epoch] for seen in (first, second)]
        assert [[nb for _, _, nb, _, _ in seen] for seen in batches] == [[6, 6, 2]] * 2
        uids = [[uid for one in seen for uid in one[3]] for seen in batches]
        # dealt out like cards: put together again they are one shuffle, whose first comes once more at the end
        order = [uid for pair in zip(*uids, strict=True) for uid in pair]
        assert sorted(order[:13]) == list(range(13))
        assert order[13] == order[0]
        orders.append(order)
    assert orders[0] != orders[1]
    for seen, rest in ((first, rest_of_first), (second, rest_of_second)):
        assert rest == [uids for epoch, number, _, uids, _ in seen if epoch == 1 and number > 0]
    noise = [value for seen in (first, second) for one in seen for value in one[4]]
    assert len(set(noise)) == len(noise) == 28
