// What an agent serves over HTTP.
#ifndef CKPTD_TESTS_INTEGRATION_HTTP_H_
#define CKPTD_TESTS_INTEGRATION_HTTP_H_

#include <cstdint>
#include <string>

namespace ckptd::harness {

// A port of the loopback address that nobody listens on.
uint16_t FreePort();

struct Answer {
  int status = 0;
  std::string head;
  std::string body;
};

Answer Get(uint16_t port, const std::string& path, const std::string& host = "localhost");

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_HTTP_H_
