#include "client/core/image/text.h"

namespace ckptd {
namespace {

// Length of the sequence that a lead byte opens, 0 for a byte that opens none. C0, C1 and F5.. are never valid.
size_t SequenceLength(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

// The second byte carries the rules against overlong forms, surrogates and code points above U+10FFFF.
bool ValidSecondByte(uint8_t lead, uint8_t second) {
  switch (lead) {
    case 0xE0:
      return second >= 0xA0 && second <= 0xBF;
    case 0xED:
      return second >= 0x80 && second <= 0x9F;
    case 0xF0:
      return second >= 0x90 && second <= 0xBF;
    case 0xF4:
      return second >= 0x80 && second <= 0x8F;
    default:
      return second >= 0x80 && second <= 0xBF;
  }
}

bool ValidSequence(std::string_view text, size_t length) {
  if (length == 0 || length > text.size()) return false;
  if (length > 1 && !ValidSecondByte(static_cast<uint8_t>(text[0]), static_cast<uint8_t>(text[1]))) return false;
  for (size_t i = 2; i < length; ++i) {
    if ((static_cast<uint8_t>(text[i]) & 0xC0) != 0x80) return false;
  }
  return true;
}

void AppendControl(uint8_t c, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  *out += "\\u00";
  *out += kHex[c >> 4];
  *out += kHex[c & 15];
}

bool NeedsEscape(char c) { return static_cast<uint8_t>(c) < 0x20 || c == '"' || c == '\\'; }

}  // namespace

size_t ValidUtf8Prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    size_t length = SequenceLength(static_cast<uint8_t>(text[at]));
    if (!ValidSequence(text.substr(at), length)) break;
    at += length;
  }
  return at;
}

void AppendUtf8(uint32_t code_point, std::string* out) {
  auto tail = [&](int shift) { out->push_back(static_cast<char>(0x80 | ((code_point >> shift) & 0x3F))); };
  if (code_point < 0x80) {
    out->push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (code_point >> 6)));
    tail(0);
  } else if (code_point < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (code_point >> 12)));
    tail(6);
    tail(0);
  } else {
    out->push_back(static_cast<char>(0xF0 | (code_point >> 18)));
    tail(12);
    tail(6);
    tail(0);
  }
}

void AppendEscaped(std::string_view text, std::string* out) {
  size_t clean = 0;  // start of the bytes that need no change and were not appended yet
  for (size_t i = 0; i < text.size(); ++i) {
    if (!NeedsEscape(text[i])) continue;
    out->append(text, clean, i - clean);
    clean = i + 1;
    switch (text[i]) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\t':
        *out += "\\t";
        break;
      default:
        AppendControl(static_cast<uint8_t>(text[i]), out);
    }
  }
  out->append(text, clean, text.size() - clean);
}

std::string Quoted(std::string_view text) {
  constexpr size_t kClip = 200;
  std::string out = "\"";
  AppendEscaped(text.substr(0, ValidUtf8Prefix(text.substr(0, kClip))), &out);
  out += text.size() > kClip || ValidUtf8Prefix(text) != text.size() ? "...\"" : "\"";
  return out;
}

}  // namespace ckptd
