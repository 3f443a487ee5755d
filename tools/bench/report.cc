#include "tools/bench/report.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ckptd::bench {
namespace {

// Our own words and messages of the system: quotes, backslashes and control characters are all that can hurt.
std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + "\"";
}

}  // namespace

std::string FormatLine(const Line& line) {
  const std::string device = line.device.empty() ? "" : absl::StrCat(",\"device\":", Quoted(line.device));
  if (!line.skipped.empty()) {
    return absl::StrFormat(R"({"case":%s,"skipped":%s%s})", Quoted(line.name), Quoted(line.skipped), device);
  }
  const Comparison& found = line.comparison;
  return absl::StrFormat(R"({"case":%s,"value":%.4g,"unit":%s,"limit":%.4g,"ratio":%.3g,"n":%d,"spread":[%.4g,%.4g],)"
                         R"("limit_spread":[%.4g,%.4g],"what":%s%s})",
                         Quoted(line.name), found.ours.median, Quoted(line.unit), found.limit.median,
                         found.ours.median / found.limit.median, found.rounds, found.ours.min, found.ours.max,
                         found.limit.min, found.limit.max, Quoted(line.what), device);
}

void Print(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

}  // namespace ckptd::bench
