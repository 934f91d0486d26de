// Reads any bytes as a file of labelled pairs. Each record that is one has its strings and a label that is known.
#include "tests/fuzz/fuzz.h"

#include "shared/data/labelled_pairs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct records records = {0};
    if (records_parse(&records, "fuzz", (const char *)data, size) == OK) {
        for (size_t i = 0; i < records.count; i++) {
            struct pair_record record;
            if (pair_record_parse(&record, records.items[i].data, records.items[i].size) == OK) {
                fuzz_must(record.premise.data && record.hypothesis.data && record.question.data);
                fuzz_must(record.label >= -1 && record.label <= 1);
            }
            pair_record_release(&record);
        }
    }
    records_release(&records);
    return 0;
}
