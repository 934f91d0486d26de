// caravan train-consistency: trains a consistency model, a ModernBERT classifier, on labelled pairs of premise and
// hypothesis.
#include <stdio.h>

#include "shared/base/json.h"
#include "tools/consistency/consistency_state.h"
#include "tools/consistency/consistency_trainer.h"
#include "tools/tools.h"

static const struct option train_options[] = {
    {.name = "data",
     .offset = offsetof(struct consistency_trainer_options, data),
     .type = OPTION_FILE,
     .required = true,
     .help = "labelled pairs, as caravan pairs writes them"},
    {.name = "model",
     .offset = offsetof(struct consistency_trainer_options, model),
     .type = OPTION_FILE,
     .required = true,
     .help = "directory of a ModernBERT: an encoder, a masked-LM checkpoint or a classifier"},
    {.name = "out",
     .offset = offsetof(struct consistency_trainer_options, out),
     .type = OPTION_PATH,
     .required = true,
     .help = "directory of the trained model"},
    {.name = "epochs",
     .offset = offsetof(struct consistency_trainer_options, epochs),
     .type = OPTION_INT,
     .default_value = "2",
     .low = 1,
     .high = 1e6,
     .help = "passes over the pairs"},
    {.name = "lr",
     .offset = offsetof(struct consistency_trainer_options, lr),
     .type = OPTION_NUMBER,
     .default_value = "3e-5",
     .high = 1e6,
     .help = "peak learning rate; it rises over the first 6 % of the steps and falls linearly to 0"},
    {.name = "pairs_per_step",
     .offset = offsetof(struct consistency_trainer_options, pairs_per_step),
     .type = OPTION_INT,
     .default_value = "64",
     .low = 1,
     .high = 1 << 20,
     .help = "pairs in one optimizer step"},
    {.name = "held_out",
     .offset = offsetof(struct consistency_trainer_options, held_out),
     .type = OPTION_NUMBER,
     .default_value = "0.05",
     .high = 1,
     .help = "share of the questions whose pairs are not trained on but scored at the end; 0: none"},
    {.name = "threshold",
     .offset = offsetof(struct consistency_trainer_options, threshold),
     .type = OPTION_NUMBER,
     .default_value = "0.5",
     .high = 1,
     .help = "probability from which on a pair counts as consistent in the figures"},
    {.name = "seed",
     .offset = offsetof(struct consistency_trainer_options, seed),
     .type = OPTION_INT,
     .default_value = "42",
     .high = 9007199254740992.0,
     .help = "seed of what is held out, of the order of the pairs, and of a new classifier's weights"},
    {.name = "max_tokens",
     .offset = offsetof(struct consistency_trainer_options, max_tokens),
     .type = OPTION_INT,
     .default_value = "8192",
     .low = 1,
     .high = 1 << 20,
     .help = "maximum tokens of a pair; the first tokens of a longer one's thinking are left out"},
    {.name = "device",
     .offset = offsetof(struct consistency_trainer_options, device),
     .type = OPTION_DEVICE,
     .help = "cpu, cuda or cuda:N (default: cuda if available)"},
    {.name = "threads",
     .offset = offsetof(struct consistency_trainer_options, threads),
     .type = OPTION_INT,
     .low = 1,
     .high = 4096,
     .help = "threads (default: all)"},
    {.name = "precision",
     .offset = offsetof(struct consistency_trainer_options, precision),
     .type = OPTION_NAME,
     .choices = "float32|bfloat16",
     .help = "type of the computation (default: float32 on the CPU, bfloat16 on CUDA)"},
    {0},
};
const struct option_table train_consistency_table = {
    .program = "caravan train-consistency",
    .help = "trains a ModernBERT classifier that says whether thinking supports an answer",
    .details = "Prints one JSON object: how many pairs were trained on and held out, and of\n"
               "those held out the accuracy, the area under the ROC curve, and the share of the\n"
               "consistent and of the inconsistent ones that were recognised. A training that\n"
               "was killed goes on where its last state was saved when the same command is given\n"
               "again.\n",
    .options = train_options,
    .size = sizeof(struct consistency_trainer_options),
};

// Appends the line of the result.
static void train_print(size_t trained, const struct classification *figures, struct buf *line) {
    const struct {
        const char *name;
        double value;
    } rates[] = {{"accuracy", figures->accuracy},
                 {"auc", figures->auc},
                 {"rate_consistent", figures->rate_consistent},
                 {"rate_inconsistent", figures->rate_inconsistent}};
    buf_printf(line, "{\"pairs\": %zu, \"held_out\": %zu", trained, figures->count);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        buf_printf(line, ", \"%s\": ", rates[i].name);
        json_print_double(line, rates[i].value);
    }
    buf_puts(line, "}\n");
}

int train_consistency_main(int argc, char **argv) {
    struct consistency_trainer_options given;
    struct options options = {0};
    struct operands none = {0};
    struct consistency_trainer *trainer = NULL;
    struct buf line = {0};
    bool finished = false;
    status result;
    TRY_TO(result, done, subcommand_parse(&options, &train_consistency_table, &given, argc, argv, &none));
    TRY_TO(result, done, consistency_trainer_new(&trainer, &given));
    TRY_TO(result, done, consistency_result_read(given.out, consistency_trainer_settings(trainer), &line, &finished));
    if (!finished) {
        struct classification figures;
        size_t trained;
        TRY_TO(result, done, consistency_trainer_run(trainer, &trained, &figures));
        train_print(trained, &figures, &line);
        TRY_TO(result, done, consistency_result_write(given.out, consistency_trainer_settings(trainer), &line));
    }
    fwrite(line.data, 1, line.size, stdout);
    result = consistency_state_remove(given.out, -1);
done:
    buf_release(&line);
    consistency_trainer_free(&trainer);
    options_release(&options);
    return subcommand_exit(result);
}
