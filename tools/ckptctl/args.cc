#include "tools/ckptctl/args.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"

namespace ckptd {
namespace {

absl::Status Usage(absl::string_view text) { return Error(ErrorCode::INVALID_ARGUMENT, text); }

const Flag* FindFlag(const std::vector<Flag>& flags, const std::string& name) {
  auto found = std::find_if(flags.begin(), flags.end(), [&](const Flag& flag) { return flag.name == name; });
  return found == flags.end() ? nullptr : &*found;
}

absl::Status Unknown(const std::vector<Flag>& flags, const std::string& name) {
  std::vector<std::string> names;
  names.reserve(flags.size());
  for (const Flag& flag : flags) names.push_back(flag.name);
  auto near = Nearest(name, names);
  return Usage(absl::StrCat(
      "unknown flag ", name,
      near ? absl::StrCat("; did you mean ", *near, "?") : absl::StrCat("; there are ", absl::StrJoin(names, " "))));
}

// Levenshtein.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row[b.size()];
}

}  // namespace

absl::StatusOr<Args> Args::Parse(const std::vector<Flag>& flags, const std::vector<std::string>& words) {
  Args out;
  bool flags_end = false;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (flags_end || word.size() < 2 || word[0] != '-') {
      out.words_.push_back(word);
      continue;
    }
    if (word == "--") {
      flags_end = true;
      continue;
    }
    const size_t equal = word.find('=');
    const std::string name = word.substr(0, equal);
    const Flag* flag = FindFlag(flags, name);
    if (flag == nullptr) return Unknown(flags, name);
    if (out.Has(name)) return Usage(absl::StrCat(name, " is given twice"));
    if (flag->value.empty() && equal != std::string::npos) return Usage(absl::StrCat(name, " takes no value"));
    if (flag->value.empty()) {
      out.flags_[name] = "";
    } else if (equal != std::string::npos) {
      out.flags_[name] = word.substr(equal + 1);
    } else if (i + 1 < words.size()) {
      out.flags_[name] = words[++i];
    } else {
      return Usage(absl::StrCat(name, " wants ", flag->value));
    }
  }
  return out;
}

std::string Args::Get(const std::string& flag) const {
  auto found = flags_.find(flag);
  return found == flags_.end() ? "" : found->second;
}

absl::StatusOr<std::optional<Rank>> Args::GetRank(const std::string& flag) const {
  if (!Has(flag)) return std::optional<Rank>();
  Rank rank = 0;
  if (!absl::SimpleAtoi(Get(flag), &rank)) return Usage(absl::StrCat(flag, " wants a rank, not ", Get(flag)));
  return std::optional<Rank>(rank);
}

absl::StatusOr<Nanos> Args::GetDuration(const std::string& flag, Nanos otherwise) const {
  if (!Has(flag)) return otherwise;
  auto duration = ParseDuration(Get(flag));
  if (!duration.ok()) return Usage(absl::StrCat(flag, ": ", duration.status().message()));
  return duration;
}

absl::StatusOr<std::optional<uint64_t>> Args::GetNumber(const std::string& flag, uint64_t least, uint64_t most) const {
  if (!Has(flag)) return std::optional<uint64_t>();
  uint64_t number = 0;
  if (!absl::SimpleAtoi(Get(flag), &number) || number < least || number > most) {
    return Usage(absl::StrCat(flag, " wants a number from ", least, " to ", most, ", not ", Get(flag)));
  }
  return std::optional<uint64_t>(number);
}

absl::StatusOr<std::optional<uint64_t>> Args::GetBytes(const std::string& flag, uint64_t least, uint64_t most) const {
  if (!Has(flag)) return std::optional<uint64_t>();
  auto bytes = ParseBytes(Get(flag));
  if (!bytes.ok()) return Usage(absl::StrCat(flag, ": ", bytes.status().message()));
  if (*bytes < least || *bytes > most) {
    return Usage(absl::StrCat(flag, " wants ", FormatBytes(least), " to ", FormatBytes(most), ", not ", Get(flag)));
  }
  return std::optional<uint64_t>(*bytes);
}

absl::StatusOr<bool> Args::Json() const {
  const std::string format = Get("-o");
  if (format == "json") return true;
  if (format.empty() || format == "table") return false;
  return Usage(absl::StrCat("-o wants table or json, not ", format));
}

absl::StatusOr<v1::Target> ParseTarget(const std::string& text) {
  std::string step = text;
  AttemptId attempt = 0;
  if (size_t at = text.find('@'), dot = text.rfind(".a");
      at != std::string::npos && dot != std::string::npos && dot > at) {
    if (!absl::SimpleAtoi(text.substr(dot + 2), &attempt) || attempt == 0) {
      return Usage(absl::StrCat("not JOB@STEP.aATTEMPT: ", text));
    }
    step = text.substr(0, dot);
  }
  CKPTD_ASSIGN_OR_RETURN(JobStep parsed, ParseJobStep(step));
  v1::Target target;
  target.set_job(parsed.job);
  if (parsed.step) target.set_step(*parsed.step);
  if (attempt != 0) target.set_attempt(attempt);
  return target;
}

bool IsPath(absl::string_view word) {
  return word == "." || word == ".." || absl::StrContains(word, '/') || absl::EndsWith(word, ".safetensors");
}

std::optional<std::string> Nearest(absl::string_view word, const std::vector<std::string>& candidates) {
  std::optional<std::string> best;
  size_t best_distance = word.size() / 2 + 1;  // more changes than that and it is another word
  for (const std::string& candidate : candidates) {
    size_t distance = Distance(word, candidate);
    if (distance >= best_distance) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

}  // namespace ckptd
