"""A shop that confirms orders by mail, with an invoice attached.

hyperscale run smtp.py --set url=smtp://user:password@localhost:25
"""

from hyperscale import Workflow, check, step
from hyperscale.testing import Email, Param, SMTPResponse

url = Param("smtp://localhost:25", secret=True)


class Confirmations(Workflow):
    vus = 8
    duration = "10s"

    @step()
    async def confirm(
        self,
        mail: Email = {
            "from": "Shop <shop@example.test>",
            "to": ["customer@example.test"],
            "subject": "Your order",
            "text": "Thank you! Your invoice is attached.",
            "attachments": {"invoice.txt": "one lamp: 20"},
        },
    ) -> SMTPResponse:
        return await self.client.smtp.send(url, mail)

    @step("confirm")
    async def notify(self) -> SMTPResponse:
        mail = {
            "from": "shop@example.test",
            "to": f"clerk-{self.vu}@example.test",
            "subject": f"Order {self.iteration}",
            "text": "A new order.",
        }
        return await self.client.smtp.send(url, mail)

    @check()
    def everybody_gets_it(self, confirm: SMTPResponse) -> bool:
        return not confirm.refused
