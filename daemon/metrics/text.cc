#include "daemon/metrics/text.h"

#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace ckptd {
namespace {

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (value == std::trunc(value) && std::abs(value) < 9007199254740992.0)  // 2^53: whole numbers without exponent
    return absl::StrCat(static_cast<int64_t>(value));
  char digits[64];
  auto [end, error] = std::to_chars(digits, digits + sizeof(digits), value);
  (void)error;  // 64 characters hold every shortest form
  return std::string(digits, end);
}

std::string LabelText(absl::string_view value) {
  return absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}});
}

// `{a="x",b="y"}`, nothing without labels. `bound` is the le of a bucket, or empty.
std::string Labels(const FamilyInfo& info, const LabelValues& values, absl::string_view bound = "") {
  std::string text;
  for (size_t i = 0; i < info.labels.size(); ++i)
    absl::StrAppend(&text, text.empty() ? "" : ",", info.labels[i], "=\"", LabelText(values[i]), "\"");
  if (!bound.empty()) absl::StrAppend(&text, text.empty() ? "" : ",", "le=\"", bound, "\"");
  return text.empty() ? text : absl::StrCat("{", text, "}");
}

const char* TypeName(const Counter*) { return "counter"; }
const char* TypeName(const Gauge*) { return "gauge"; }
const char* TypeName(const Histogram*) { return "histogram"; }

template <typename Metric>
void AppendSeries(const FamilyInfo& info, const LabelValues& values, const Metric& metric, std::string* text) {
  absl::StrAppend(text, info.name, Labels(info, values), " ", NumberText(metric.value()), "\n");
}

// _count is the last bucket by construction, also while somebody observes.
void AppendSeries(const FamilyInfo& info, const LabelValues& values, const Histogram& histogram, std::string* text) {
  std::vector<uint64_t> counts = histogram.Counts();
  uint64_t cumulative = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    cumulative += counts[i];
    std::string bound = i < histogram.bounds().size() ? NumberText(histogram.bounds()[i]) : "+Inf";
    absl::StrAppend(text, info.name, "_bucket", Labels(info, values, bound), " ", cumulative, "\n");
  }
  std::string labels = Labels(info, values);
  absl::StrAppend(text, info.name, "_sum", labels, " ", NumberText(histogram.sum()), "\n");
  absl::StrAppend(text, info.name, "_count", labels, " ", cumulative, "\n");
}

template <typename Metric>
void AppendFamily(const Family<Metric>& family, std::string* text) {
  const FamilyInfo& info = family.info();
  absl::StrAppend(text, "# HELP ", info.name, " ", absl::StrReplaceAll(info.help, {{"\\", "\\\\"}, {"\n", "\\n"}}),
                  "\n");
  absl::StrAppend(text, "# TYPE ", info.name, " ", TypeName(static_cast<const Metric*>(nullptr)), "\n");
  family.ForEach([&](const LabelValues& values, const Metric& metric) { AppendSeries(info, values, metric, text); });
}

}  // namespace

std::string MetricsText(const AgentMetrics& metrics) {
  std::string text;
  metrics.ForEachFamily([&text](const auto& family) { AppendFamily(family, &text); });
  return text;
}

}  // namespace ckptd
