# The peer makes new golden data, and the tests compare with it. PEER_PYTHON names a Python with torch 2.7, torchvision and
# transformers 4.51.3, TENSORBOARD_PYTHON one with tensorboard, PROMETHEUS_PYTHON one with prometheus_client; SEED selects other random models than the committed ones.
PEER_PYTHON ?=
TENSORBOARD_PYTHON ?= $(PEER_PYTHON)
PROMETHEUS_PYTHON  ?= $(PEER_PYTHON)
SEED        ?= 0

.PHONY: parity parity-peer parity-model parity-adapters parity-classifier parity-events parity-metrics parity-answers
parity: parity-model parity-adapters parity-classifier parity-events parity-metrics parity-answers ## compare with Hugging Face again: make parity PEER_PYTHON=/path/to/python

parity-peer:
	@test -n "$(PEER_PYTHON)" || { echo "make parity PEER_PYTHON=/path/to/python (with torch, transformers 4.51.3 and peft)"; exit 64; }

parity-model: parity-peer $(BUILD)/tests/unit/model_parity $(BUILD)/tests/unit/model_losses $(BUILD)/tests/unit/model_bits
	rm -rf $(BUILD)/parity/model $(BUILD)/parity/checkpoints
	mkdir -p $(BUILD)/parity/checkpoints
	$(PEER_PYTHON) tests/parity/make_model_golden.py $(BUILD)/parity/model $(SEED)
	$(PEER_PYTHON) tests/parity/make_loss_golden.py $(BUILD)/parity/model
	MODEL_GOLDEN=$(BUILD)/parity/model $(BUILD)/tests/unit/model_parity
	MODEL_GOLDEN=$(BUILD)/parity/model $(BUILD)/tests/unit/model_losses
	MODEL_GOLDEN=$(BUILD)/parity/model MODEL_CHECKPOINTS=$(BUILD)/parity/checkpoints $(BUILD)/tests/unit/model_bits
	$(PEER_PYTHON) tests/parity/load_checkpoint.py $(addprefix $(BUILD)/parity/checkpoints/,even pairs thirds clip)

parity-adapters: parity-peer $(BUILD)/tests/unit/model_adapters # with PEFT
	rm -rf $(BUILD)/parity/adapters $(BUILD)/parity/saved-adapters
	mkdir -p $(BUILD)/parity/saved-adapters
	$(PEER_PYTHON) tests/parity/make_adapter_golden.py tests/data/model $(BUILD)/parity/adapters
	ADAPTER_GOLDEN=$(BUILD)/parity/adapters MODEL_CHECKPOINTS=$(BUILD)/parity/saved-adapters $(BUILD)/tests/unit/model_adapters
	$(PEER_PYTHON) tests/parity/load_adapter.py tests/data/model $(patsubst %,$(BUILD)/parity/saved-adapters/%-adapter,even pairs thirds clip)

parity-classifier: parity-peer $(BUILD)/tests/unit/classifier_parity
	rm -rf $(BUILD)/parity/classifier $(BUILD)/parity/classifiers
	mkdir -p $(BUILD)/parity/classifiers
	$(PEER_PYTHON) tests/parity/make_classifier_golden.py $(BUILD)/parity/classifier $(SEED)
	CLASSIFIER_GOLDEN=$(BUILD)/parity/classifier CLASSIFIER_CHECKPOINTS=$(BUILD)/parity/classifiers $(BUILD)/tests/unit/classifier_parity
	$(PEER_PYTHON) tests/parity/load_classifier.py $(addprefix $(BUILD)/parity/classifiers/,mean biases wide)

parity-events: parity-peer $(BUILD)/tests/unit/event_file # what the test writes, read by TensorBoard
	rm -rf $(BUILD)/parity/events
	mkdir -p $(BUILD)/parity
	cp -r tests/data/events $(BUILD)/parity/events
	EVENTS=$(BUILD)/parity/events $(BUILD)/tests/unit/event_file
	$(TENSORBOARD_PYTHON) tests/parity/tensorboard_compare.py $(BUILD)/parity/events

parity-metrics: $(BUILD)/tests/unit/run_status # what the test writes, read by Prometheus' parsers
	@test -n "$(PROMETHEUS_PYTHON)" || { echo "make parity-metrics PROMETHEUS_PYTHON=/path/to/python (with prometheus_client)"; exit 64; }
	rm -rf $(BUILD)/parity/metrics
	mkdir -p $(BUILD)/parity/metrics
	METRICS=$(BUILD)/parity/metrics $(BUILD)/tests/unit/run_status
	$(PROMETHEUS_PYTHON) tests/parity/prometheus_compare.py $(BUILD)/parity/metrics/metrics.prom

parity-answers: parity-peer programs
	$(PEER_PYTHON) tests/parity/make_answers_golden.py $(BUILD)/bin/caravan $(BUILD)/parity/answers $(SEED)
	ANSWERS_GOLDEN=$(BUILD)/parity/answers BIN=$(abspath $(BUILD))/bin bash tests/e2e/generated-answers.sh
