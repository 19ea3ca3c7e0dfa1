from selhn.losses import BCE, BCEMax


def test_golden(check_golden_loss):
    check_golden_loss("loss_camp_bce_all", BCE.official())
    check_golden_loss("loss_camp_bce_max", BCEMax.official())
