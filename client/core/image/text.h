// UTF-8 and JSON string text, as far as a safetensors header needs them.
#ifndef CKPTD_CLIENT_CORE_IMAGE_TEXT_H_
#define CKPTD_CLIENT_CORE_IMAGE_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ckptd {

inline constexpr std::string_view kMetadataKey = "__metadata__";  // the key of a header that is no tensor

// Bytes from the start that are well-formed UTF-8 (no overlong forms, no surrogates, nothing above U+10FFFF);
// text.size() when all of it is.
[[nodiscard]] size_t ValidUtf8Prefix(std::string_view text);

// `code_point` is at most 0x10FFFF and no surrogate.
void AppendUtf8(uint32_t code_point, std::string* out);

// The text escaped for the inside of a JSON string, without the quotes. Other than `"`, `\` and control characters,
// bytes stay as they are, so valid UTF-8 stays valid.
void AppendEscaped(std::string_view text, std::string* out);

// "quoted", control characters escaped, clipped to about 200 bytes: safe in a log line whatever the text is.
[[nodiscard]] std::string Quoted(std::string_view text);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_IMAGE_TEXT_H_
