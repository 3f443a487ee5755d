#include "tools/bench/options.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"

namespace ckptd::bench {
namespace {

absl::StatusOr<uint64_t> Number(const std::string& flag, const std::string& text, uint64_t most) {
  uint64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value == 0 || value > most) {
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(flag, " ", text, ": a number from 1 to ", most));
  }
  return value;
}

absl::Status TakeFlag(const std::string& flag, const std::string& value, Options* options) {
  if (flag == "--bytes") {
    CKPTD_ASSIGN_OR_RETURN(options->bytes, ParseBytes(value));
  } else if (flag == "--tensors") {
    CKPTD_ASSIGN_OR_RETURN(options->tensors, Number(flag, value, 1 << 20));
  } else if (flag == "--ranks") {
    CKPTD_ASSIGN_OR_RETURN(options->ranks, Number(flag, value, 64));
  } else if (flag == "--chunk") {
    CKPTD_ASSIGN_OR_RETURN(options->chunk, ParseBytes(value));
  } else if (flag == "--n") {
    CKPTD_ASSIGN_OR_RETURN(options->rounds, Number(flag, value, 10'000));
  } else if (flag == "--dir") {
    options->dir = value;
  } else if (flag == "--region") {
    options->region = value;
  } else {
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("no flag ", flag, "; ckptd-bench --help lists them"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& words) {
  CommandLine line;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "-h" || word == "--help") {
      line.help = true;
    } else if (word.compare(0, 2, "--") != 0) {
      line.cases.push_back(word);
    } else if (i + 1 == words.size()) {
      return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(word, ": its value is missing"));
    } else {
      CKPTD_RETURN_IF_ERROR(TakeFlag(word, words[++i], &line.options));
    }
  }
  return line;
}

}  // namespace ckptd::bench
