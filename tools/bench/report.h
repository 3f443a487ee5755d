// One JSON object a line on stdout:
//
//   {"case":"save.blocked","value":0.8,"unit":"ms","limit":17,"ratio":0.047,"n":5,"spread":[0.7,1.1],
//    "limit_spread":[17,17]}
//
// value and limit are medians, ratio is value / limit, spread the least and the greatest of ours, limit_spread those of
// the limit. `what` tells what the limit is, `device` (of a GPU's case) which GPU it was. A case that cannot run here
// says {"case":…,"skipped":"why"}.
#ifndef CKPTD_TOOLS_BENCH_REPORT_H_
#define CKPTD_TOOLS_BENCH_REPORT_H_

#include <string>

#include "tools/bench/measure.h"

namespace ckptd::bench {

struct Line {
  std::string name;
  std::string unit;
  std::string what;  // the limit: "memcpy"
  Comparison comparison;
  std::string skipped = "";  // why the case cannot run here; then only this, the name and the device count
  std::string device = "";
};

[[nodiscard]] std::string FormatLine(const Line& line);

// To stdout, at once.
void Print(const std::string& line);

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_REPORT_H_
