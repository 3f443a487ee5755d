#include "tools/ckptctl/output.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/json/printer.h"

namespace ckptd {
namespace {

void AppendRow(const std::vector<std::string>& cells, const std::vector<size_t>& widths, absl::string_view indent,
               std::string* out) {
  std::string line(indent);
  for (size_t i = 0; i < cells.size(); ++i) {
    absl::StrAppend(&line, cells[i], std::string(widths[i] - std::min(widths[i], cells[i].size()) + 2, ' '));
  }
  absl::StripTrailingAsciiWhitespace(&line);
  absl::StrAppend(out, line, "\n");
}

}  // namespace

std::string Table::Text(absl::string_view indent) const {
  std::vector<size_t> widths;
  for (const std::string& head : heads_) widths.push_back(head.size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  AppendRow(heads_, widths, indent, &out);
  for (const auto& row : rows_) AppendRow(row, widths, indent, &out);
  return out;
}

bool UseColour() { return std::getenv("NO_COLOR") == nullptr && isatty(STDOUT_FILENO) != 0; }

std::string Coloured(Tone tone, absl::string_view text) {
  const char* code = nullptr;
  switch (tone) {
    case Tone::kPlain:
      break;
    case Tone::kGood:
      code = "32";
      break;
    case Tone::kWarn:
      code = "33";
      break;
    case Tone::kBad:
      code = "31";
      break;
    case Tone::kStrong:
      code = "1";
      break;
  }
  if (code == nullptr || !UseColour()) return std::string(text);
  return absl::StrCat("\x1b[", code, "m", text, "\x1b[0m");
}

void Print(absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void PrintJson(const google::protobuf::Message& message) {
  PrintJson(message, JsonStyle::kIndented, [](absl::string_view piece) { Print(piece); });
}

std::string ErrorText(const absl::Status& status) {
  const ErrorCode code = CodeOf(status);
  // That row speaks to who waits in restore().
  const char* next =
      code == ErrorCode::TIMEOUT ? "ckptctl status tells how the agent and its storage are" : InfoOf(code).next_step;
  return absl::StrCat("ckptctl: ", Clean(status.message()), "\n  next: ", next, "\n");
}

int Fail(const absl::Status& status) {
  std::fputs(ErrorText(status).c_str(), stderr);
  return InfoOf(CodeOf(status)).exit_code;
}

void Complain(absl::string_view sentence) {
  std::fputs(absl::StrCat("ckptctl: ", Clean(sentence), "\n").c_str(), stderr);
}

std::string Clean(absl::string_view text) {
  std::string out(text);
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return (c < 0x20 && c != '\n') || c == 0x7f; }, '?');
  return out;
}

std::string Count(uint64_t count, const char* one) { return absl::StrCat(count, " ", one, count == 1 ? "" : "s"); }

Nanos Seconds(double seconds) { return Nanos(static_cast<int64_t>(seconds * 1e9)); }

}  // namespace ckptd
