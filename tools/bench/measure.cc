#include "tools/bench/measure.h"

#include <signal.h>

#include <algorithm>

#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::bench {
namespace {

volatile sig_atomic_t interrupted = 0;

void OnSignal(int) { interrupted = 1; }

absl::Status GoOn() { return interrupted != 0 ? Error(ErrorCode::CANCELLED, "interrupted") : absl::OkStatus(); }

absl::Status Take(const Measure& measure, std::vector<double>* samples) {
  CKPTD_RETURN_IF_ERROR(GoOn());
  CKPTD_ASSIGN_OR_RETURN(double sample, measure());
  samples->push_back(sample);
  return absl::OkStatus();
}

}  // namespace

Summary Summarize(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  size_t middle = samples.size() / 2;
  double median = samples.size() % 2 != 0 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
  return {median, samples.front(), samples.back()};
}

absl::StatusOr<Comparison> Alternate(uint32_t rounds, const Measure& ours, const Measure& limit) {
  std::vector<double> our_samples;
  std::vector<double> limit_samples;
  for (uint32_t round = 0; round <= rounds; ++round) {
    bool ours_first = round % 2 == 0;
    if (ours_first) CKPTD_RETURN_IF_ERROR(Take(ours, &our_samples));
    CKPTD_RETURN_IF_ERROR(Take(limit, &limit_samples));
    if (!ours_first) CKPTD_RETURN_IF_ERROR(Take(ours, &our_samples));
  }
  our_samples.erase(our_samples.begin());
  limit_samples.erase(limit_samples.begin());
  return Comparison{Summarize(our_samples), Summarize(limit_samples), rounds};
}

absl::Status Repeat(uint32_t rounds, const std::function<absl::Status(bool)>& measure) {
  for (uint32_t round = 0; round <= rounds; ++round) {
    CKPTD_RETURN_IF_ERROR(GoOn());
    CKPTD_RETURN_IF_ERROR(measure(round != 0));
  }
  return absl::OkStatus();
}

void CatchSignals() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace ckptd::bench
