// Is this test built with a sanitizer? Its shadow memory, its own pages and its slowness are not the product's.
#ifndef CKPTD_TESTS_INTEGRATION_SANITIZED_H_
#define CKPTD_TESTS_INTEGRATION_SANITIZED_H_

namespace ckptd::harness {

// gcc says so with a macro, clang with a feature.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_SANITIZED_H_
