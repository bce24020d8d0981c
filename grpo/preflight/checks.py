"""The only list of what is checked before a run, in the order in which faults are named."""

from __future__ import annotations

from grpo.preflight import data, gate_example, judges, models, outcomes, registered, rewards, rollout_servers, signal
from grpo.preflight.table import GATED, SERVERS, STORE, TRAINING, Check

CHECKS: tuple[Check, ...] = (
    Check(name="models and data sets have addresses", test=models.addresses, purposes=TRAINING),
    Check(name="files of the user's code are there", test=data.user_code),
    Check(name="model files are whole", test=models.files, purposes=TRAINING),
    Check(name="objects of the user's code can be made", test=data.objects),
    Check(name="rewards can be made and are not exploited", test=rewards.made, purposes=TRAINING),
    Check(name="rewards can be made", test=rewards.composed),
    Check(name="the simulated user's model is there", test=judges.user_model),
    Check(name="sources hold usable scenarios", test=data.scenarios),
    Check(name="the environment can play the scenarios", test=data.playable),
    Check(name="both splits hold scenarios", test=data.splits),
    Check(name="scenarios have the columns that rewards take", test=rewards.columns),
    Check(name="rewards get the outcomes that they need", test=outcomes.rewards),
    Check(name="credit by state has states", test=outcomes.credit, purposes=TRAINING),
    Check(name="branches can be copied", test=outcomes.branches, purposes=TRAINING),
    Check(name="turn rewards can be compared with success", test=outcomes.admission, purposes=TRAINING),
    Check(name="the teacher has hints", test=outcomes.privileged_context, purposes=TRAINING),
    Check(name="the curriculum has outcomes and levels", test=outcomes.curriculum, purposes=TRAINING),
    Check(name="gates get the outcomes that they need", test=outcomes.gates, purposes=GATED),
    Check(name="gates find their scenarios and categories", test=outcomes.gate_scenarios, purposes=GATED),
    Check(name="held-out scenarios are enough for the gates", test=outcomes.enough_scenarios, purposes=GATED),
    Check(name="functions of the user's gates can be called", test=outcomes.gate_functions),
    Check(name="gates of the user's own give a check", test=gate_example.called, purposes=GATED),
    Check(name="servers of models answer", test=judges.servers),
    Check(name="the store is where it was", test=models.store_place, needs=STORE),
    Check(
        name="the store has room for the checkpoints", test=models.disk, purposes=TRAINING, imports=True, needs=STORE
    ),
    Check(name="the simulated user's model has a template or replies", test=judges.user_prompts, imports=True),
    Check(name="packages and devices of the settings are there", test=models.backend, imports=True),
    Check(name="the chat template can be used", test=models.template, imports=True),
    Check(name="the training settings fit the model", test=models.training, purposes=TRAINING, imports=True),
    Check(name="the teacher reads the tokens of the policy", test=models.teacher, purposes=TRAINING, imports=True),
    Check(name="rollout servers of the run have room", test=models.started_servers, imports=True),
    Check(name="a rollout server answers", test=rollout_servers.rollout_servers, imports=True),
    Check(name="the nodes can meet", test=models.nodes, purposes=TRAINING, imports=True),
    Check(name="the context is within the model's", test=models.context, imports=True),
    Check(name="demonstrations and pairs can be read", test=data.tuning, purposes=TRAINING, imports=True),
    Check(name="episodes can be played", test=models.episodes, imports=True),
    Check(name="rewards score a played episode", test=rewards.scored, imports=True),
    Check(name="rewards can differ", test=signal.rewards_differ, purposes=TRAINING, imports=True),
    Check(name="rewards of turns can be used", test=signal.turn_rewards, purposes=TRAINING, imports=True),
    Check(name="entropy is measured in one pass", test=signal.entropy_in_one_pass, purposes=TRAINING, imports=True),
    Check(name="the safety gate has its encoder", test=outcomes.safety, purposes=GATED, imports=True),
    Check(name="the registry takes the version", test=registered.registry, purposes=GATED, imports=True, needs=SERVERS),
)
