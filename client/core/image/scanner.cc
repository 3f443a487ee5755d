#include "client/core/image/scanner.h"

#include "client/core/image/dtype.h"
#include "client/core/image/text.h"

namespace ckptd {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool EndsPlainRun(char c) { return c == '"' || c == '\\' || static_cast<uint8_t>(c) < 0x20; }

}  // namespace

bool Scanner::FailAt(uint64_t offset, ImageErrorKind kind, std::string message) {
  if (error_.ok()) error_ = {kind, offset, std::move(message)};
  return false;
}

void Scanner::SkipSpace() {
  while (at_ < text_.size()) {
    char c = text_[at_];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
    ++at_;
  }
}

bool Scanner::TryTake(char c) {
  SkipSpace();
  if (at_ == text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

bool Scanner::Take(char c, std::string_view where) {
  if (TryTake(c)) return true;
  return Fail(ImageErrorKind::kSyntax, std::string("expected '") + c + "' " + std::string(where));
}

bool Scanner::TakeSeparator(char close, std::string_view where, bool* more) {
  *more = TryTake(',');
  if (*more || TryTake(close)) return true;
  return Fail(ImageErrorKind::kSyntax, std::string("expected ',' or '") + close + "' " + std::string(where));
}

bool Scanner::String(std::string_view what, uint64_t max_bytes, std::string* out) {
  out->clear();
  if (!TryTake('"')) return Fail(ImageErrorKind::kSyntax, std::string(what) + " is not a string");
  while (true) {
    size_t start = at_;
    while (at_ < text_.size() && !EndsPlainRun(text_[at_])) ++at_;
    std::string_view run = text_.substr(start, at_ - start);
    if (out->size() + run.size() > max_bytes) {
      return Fail(ImageErrorKind::kLimit,
                  std::string(what) + " is longer than " + std::to_string(max_bytes) + " bytes");
    }
    // Runs end only at ASCII characters, so a sequence is never split between two of them.
    size_t valid = ValidUtf8Prefix(run);
    if (valid != run.size())
      return FailAt(base_ + start + valid, ImageErrorKind::kText, std::string(what) + " is not UTF-8");
    out->append(run);
    if (at_ == text_.size()) return Fail(ImageErrorKind::kSyntax, std::string(what) + " has no closing quote");
    char c = text_[at_++];
    if (c == '"') break;
    if (c != '\\') return Fail(ImageErrorKind::kText, std::string(what) + " holds a bare control character");
    if (!Escape(out)) return false;
  }
  if (out->size() <= max_bytes) return true;
  return Fail(ImageErrorKind::kLimit, std::string(what) + " is longer than " + std::to_string(max_bytes) + " bytes");
}

bool Scanner::Escape(std::string* out) {
  constexpr std::string_view kShort = "\"\\/bfnrt";
  constexpr std::string_view kMeaning = "\"\\/\b\f\n\r\t";
  if (at_ == text_.size()) return Fail(ImageErrorKind::kSyntax, "the text ends inside an escape");
  char c = text_[at_++];
  if (c == 'u') return UnicodeEscape(out);
  size_t index = kShort.find(c);
  if (index == std::string_view::npos) return Fail(ImageErrorKind::kText, "unknown escape in a string");
  out->push_back(kMeaning[index]);
  return true;
}

bool Scanner::UnicodeEscape(std::string* out) {
  uint32_t unit = 0;
  if (!HexQuad(&unit)) return false;
  if (unit >= 0xD800 && unit <= 0xDFFF) {
    uint32_t low = 0;
    if (unit >= 0xDC00 || text_.substr(at_, 2) != "\\u")
      return Fail(ImageErrorKind::kText, "a lone surrogate in a string");
    at_ += 2;
    if (!HexQuad(&low)) return false;
    if (low < 0xDC00 || low > 0xDFFF) return Fail(ImageErrorKind::kText, "a lone surrogate in a string");
    unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
  }
  AppendUtf8(unit, out);
  return true;
}

bool Scanner::HexQuad(uint32_t* out) {
  *out = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    if (at_ == text_.size()) return Fail(ImageErrorKind::kSyntax, "the text ends inside an escape");
    char c = text_[at_];
    char lower = static_cast<char>(c | 0x20);
    bool letter = lower >= 'a' && lower <= 'f';
    if (!IsDigit(c) && !letter) return Fail(ImageErrorKind::kText, "a \\u escape without four hexadecimal digits");
    *out = *out * 16 + static_cast<uint32_t>(letter ? lower - 'a' + 10 : c - '0');
  }
  return true;
}

bool Scanner::Number(std::string_view what, uint64_t* out) {
  SkipSpace();
  size_t start = at_;
  uint64_t value = 0;
  while (at_ < text_.size() && IsDigit(text_[at_])) {
    value = value * 10 + static_cast<uint64_t>(text_[at_++] - '0');
    if (value > kMaxFormatNumber) return Fail(ImageErrorKind::kLimit, std::string(what) + " is above 2^48 - 1");
  }
  if (at_ == start) return Fail(ImageErrorKind::kSyntax, std::string(what) + " is not an unsigned integer");
  if (at_ - start > 1 && text_[start] == '0') {
    return Fail(ImageErrorKind::kSyntax, std::string(what) + " has a leading zero");
  }
  *out = value;  // a fraction or exponent stops at the separator that the caller wants next
  return true;
}

}  // namespace ckptd
