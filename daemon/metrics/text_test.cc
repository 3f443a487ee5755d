#include "daemon/metrics/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace ckptd {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Text, AnIdleAgentShowsItsZeros) {
  AgentMetrics metrics("0.1.0", "abc");
  std::string text = MetricsText(metrics);
  EXPECT_THAT(text, HasSubstr("# HELP ckptd_build_info Version of the running agent; always 1.\n"
                              "# TYPE ckptd_build_info gauge\n"
                              "ckptd_build_info{version=\"0.1.0\",revision=\"abc\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nprocess_cpu_seconds_total 0\n"));
  EXPECT_THAT(text, HasSubstr("\nckptd_verify_failures_total{tier=\"region\"} 0\n"));
  EXPECT_THAT(text, EndsWith("\n"));
}

TEST(Text, AJobStartsAtZeroWithoutFalseSuccess) {
  AgentMetrics metrics("", "");
  metrics.AddJob("gpt");
  metrics.AddJob("gpt");
  std::string text = MetricsText(metrics);
  EXPECT_THAT(text, HasSubstr("\nckptd_saves_total{training_job=\"gpt\",result=\"captured\"} 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("ckptd_last_success_step{")));
}

TEST(Text, OfJobsThatAreForgottenNothingIsLeft) {
  AgentMetrics metrics("", "");
  const std::string idle = MetricsText(metrics);
  for (size_t i = 0; i <= Family<Counter>::kMaxSeries; ++i) {
    const std::string job = "job-" + std::to_string(i);
    metrics.AddJob(job);
    metrics.last_success_step.With({job, "storage"}).Set(7);
    metrics.ForgetJob(job);
  }
  EXPECT_EQ(MetricsText(metrics), idle);
  metrics.AddJob("gpt");
  EXPECT_THAT(MetricsText(metrics), HasSubstr("\nckptd_saves_total{training_job=\"gpt\",result=\"captured\"} 0\n"));
  metrics.ForgetJob("gp");
  metrics.ForgetJob("captured");
  EXPECT_THAT(MetricsText(metrics), HasSubstr("\nckptd_saves_total{training_job=\"gpt\",result=\"captured\"} 0\n"));
}

TEST(Text, HistogramsAreCumulative) {
  AgentMetrics metrics("", "");
  Histogram& stall = metrics.save_stall.With({"gpt"});
  stall.Observe(0.001);
  stall.Observe(0.0011);
  stall.Observe(100);
  std::string text = MetricsText(metrics);
  EXPECT_THAT(text, HasSubstr("ckptd_save_stall_seconds_bucket{training_job=\"gpt\",le=\"5e-04\"} 0\n"
                              "ckptd_save_stall_seconds_bucket{training_job=\"gpt\",le=\"0.001\"} 1\n"
                              "ckptd_save_stall_seconds_bucket{training_job=\"gpt\",le=\"0.002\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("le=\"30\"} 2\n"
                              "ckptd_save_stall_seconds_bucket{training_job=\"gpt\",le=\"+Inf\"} 3\n"
                              "ckptd_save_stall_seconds_sum{training_job=\"gpt\"} 100.0021\n"
                              "ckptd_save_stall_seconds_count{training_job=\"gpt\"} 3\n"));
}

TEST(Text, LabelsAreEscaped) {
  AgentMetrics metrics("", "");
  metrics.errors.With({"a\"b\\c\nd"}).Add();
  EXPECT_THAT(MetricsText(metrics), HasSubstr("ckptd_errors_total{kind=\"a\\\"b\\\\c\\nd\"} 1\n"));
}

TEST(Text, Numbers) {
  AgentMetrics metrics("", "");
  auto shown = [&](double value) {
    metrics.region_used.With({}).Set(value);
    std::string text = MetricsText(metrics);
    size_t begin = text.find("\nckptd_region_used_bytes ") + sizeof("\nckptd_region_used_bytes ") - 1;
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  EXPECT_EQ(shown(123456789012), "123456789012");
  EXPECT_EQ(shown(0.1), "0.1");
  EXPECT_EQ(shown(1e300), "1e+300");
  EXPECT_EQ(shown(-std::numeric_limits<double>::infinity()), "-Inf");
  EXPECT_EQ(shown(std::numeric_limits<double>::quiet_NaN()), "NaN");
}

// The rules that promtool checks, for every family.
TEST(Text, NamesFollowTheRules) {
  AgentMetrics metrics("", "");
  std::set<std::string> names;
  for (absl::string_view line : absl::StrSplit(MetricsText(metrics), '\n')) {
    if (!absl::StartsWith(line, "# TYPE ")) continue;
    std::vector<std::string> words = absl::StrSplit(line, ' ');
    EXPECT_TRUE(names.insert(words[2]).second) << line;
    EXPECT_EQ(words[3] == "counter", absl::EndsWith(words[2], "_total")) << line;
    EXPECT_TRUE(absl::StartsWith(words[2], "ckptd_") || absl::StartsWith(words[2], "process_")) << line;
  }
  EXPECT_EQ(names.size(), 44u);
}

// The struct is its families and nothing else: what fills less of it has left one out, which nobody would ever see.
TEST(Text, NoFamilyIsLeftOut) {
  AgentMetrics metrics("", "");
  size_t bytes = 0;
  metrics.ForEachFamily([&bytes](const auto& family) { bytes += sizeof(family); });
  EXPECT_EQ(bytes, sizeof(AgentMetrics));
}

}  // namespace
}  // namespace ckptd
