#include "stages/optim/schedule.h"

#include <math.h>

double schedule_rate(const struct schedule *schedule, int64_t step) {
    if (step < schedule->warmup) return schedule->rate * (double)step / (double)schedule->warmup;
    if (!schedule->cosine) return schedule->rate;
    if (step >= schedule->steps) return 0;
    double progress = (double)(step - schedule->warmup) / (double)(schedule->steps - schedule->warmup);
    return schedule->rate * 0.5 * (1.0 + cos(3.14159265358979323846 * progress));
}
