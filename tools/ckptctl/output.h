// What people and scripts read: tables, JSON, errors.
#ifndef CKPTD_TOOLS_CKPTCTL_OUTPUT_H_
#define CKPTD_TOOLS_CKPTCTL_OUTPUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/base/clock.h"

namespace google::protobuf {
class Message;
}

namespace ckptd {

// Columns as wide as their widest cell, two spaces between them, no spaces at the end of a line.
class Table {
 public:
  explicit Table(std::vector<std::string> heads) : heads_(std::move(heads)) {}
  void Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  [[nodiscard]] bool empty() const { return rows_.empty(); }
  [[nodiscard]] std::string Text(absl::string_view indent = "") const;

 private:
  std::vector<std::string> heads_;
  std::vector<std::vector<std::string>> rows_;
};

// Colours only on a terminal and without NO_COLOR.
enum class Tone { kPlain, kGood, kWarn, kBad, kStrong };
[[nodiscard]] bool UseColour();
[[nodiscard]] std::string Coloured(Tone tone, absl::string_view text);

// To standard output. A reader that has gone is not our error.
void Print(absl::string_view text);
void PrintJson(const google::protobuf::Message& message);

// "ckptctl: <sentence>\n  next: <what to do>\n".
[[nodiscard]] std::string ErrorText(const absl::Status& status);
// Writes it to standard error; the exit code of the status.
[[nodiscard]] int Fail(const absl::Status& status);

// Writes "ckptctl: <sentence>" to standard error: what an answer that was printed lacks.
void Complain(absl::string_view sentence);

// "1 node", "3 nodes".
[[nodiscard]] std::string Count(uint64_t count, const char* one);
[[nodiscard]] Nanos Seconds(double seconds);

// Text of others on a terminal: control characters become '?'.
[[nodiscard]] std::string Clean(absl::string_view text);

}  // namespace ckptd

#endif  // CKPTD_TOOLS_CKPTCTL_OUTPUT_H_
