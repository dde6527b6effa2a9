"""Health check of a container: exit code 0 if its server answers 200 at the given port and path, else 1.

Standard library only, so that a check costs a few hundredths of a second and little memory.
"""

import http.client
import sys

TIMEOUT_SECONDS = 5.0


def healthy(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        print(answer.status, answer.read(300).decode(errors="replace").strip())  # shown by `docker inspect`
    except (OSError, http.client.HTTPException) as error:
        print(f"127.0.0.1:{port} does not answer: {error}")
        return False
    finally:
        connection.close()
    return answer.status == 200


if __name__ == "__main__":
    sys.exit(0 if healthy(int(sys.argv[1]), sys.argv[2]) else 1)
